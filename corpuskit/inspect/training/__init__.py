"""The curves of a training, as a section of a page."""
