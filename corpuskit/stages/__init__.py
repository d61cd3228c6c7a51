"""The stages: a file or package in a folder named after its kind defines one stage."""
