"""Models of the Hugging Face form: written from checkpoints, and trained further."""
