"""Files on disk (docs/formats.md): columns, shards, the ledger, shuffle files, manifests, seals."""
