"""What stages dropped, cut and kept, with the texts: `corpuskit inspect`."""
