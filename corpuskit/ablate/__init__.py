"""Which corpora, and which shares of sources, make the better model: small trainings, compared."""
