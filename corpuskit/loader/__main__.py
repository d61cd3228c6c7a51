"""Run `python -m corpuskit.loader`."""

from corpuskit.loader.commands import main

main()
