"""Printable text, progress, and standard streams that are closed or no longer read."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import NoReturn

import click

from corpuskit.errors import printable


def open_streams() -> None:
    """Open the null device as standard streams that are closed (`2>&-`).

    Else the next file that is opened gets the number of the stream, and what a library prints as an
    error goes into the data.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        if getattr(sys, name) is None:
            stream = os.fdopen(number, mode, encoding="utf-8", closefd=False)
            setattr(sys, name, stream)


def discard_output() -> None:
    """Send what is still printed to the null device: the reader of a pipe (`head`) has gone.

    Which of the two streams broke is not known, so each is tried.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def end_unread(hint: str) -> NoReturn:
    """End a command in mid-work because nobody reads what it prints: exit code 1.

    Args:
        hint: how to go on.
    """
    discard_output()
    with contextlib.suppress(BrokenPipeError):
        click.echo(f"Stopped: nobody reads the output any more. {hint}", err=True)
    discard_output()
    sys.exit(1)


class Meter:
    """Shows on standard error how far a command is: in place on a terminal, else now and then."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet, self._is_terminal = is_quiet, sys.stderr.isatty()
        self._every = 0.5 if self._is_terminal else 20.0  # seconds
        self._began = time.monotonic()
        self._last = 0.0 if self._is_terminal else self._began

    def show(self, line: str) -> None:
        """Show a line, unless the last one is too recent."""
        now = time.monotonic()
        if self._is_quiet or now - self._last < self._every:
            return
        self._last = now
        line = f"{one_line(line)}, {now - self._began:.0f} s"
        if self._is_terminal:
            click.echo(f"\r{line[:79]:<79}", err=True, nl=False)
        else:
            click.echo(f"  {line}", err=True)

    def clear(self) -> None:
        """Take the line off the terminal."""
        if self._is_terminal and not self._is_quiet:
            click.echo(f"\r{'':<79}\r", err=True, nl=False)


# ---------------------------------------------------------------- what a terminal would obey

# What is shown came from anywhere: documents, ids, file names, other people's manifests.


def one_line(text: str) -> str:
    """Return printable text without line feeds: nobody can make up a line of ours."""
    return printable(text).replace("\n", "\\n")


def echo(message: str, *, err: bool = False, nl: bool = True) -> None:
    """Print printable text."""
    click.echo(printable(message), err=err, nl=nl)
