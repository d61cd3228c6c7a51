"""Run the command line: `python -m corpuskit`."""

from corpuskit.cli.main import main

main()
