"""Two runs compared: `corpuskit diff`."""
