"""What other bounds would keep and drop: `corpuskit tune`."""
