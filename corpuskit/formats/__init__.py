"""What is on disk: columns of a batch, document shards, ledger, shuffle files, manifests."""
