"""All that happened to one document: `corpuskit why`."""
