"""datatrove, datasketch and exports: our parts in other tools, and theirs in ours."""
