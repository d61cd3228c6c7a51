"""The dataset card of a run: `corpuskit card`."""
