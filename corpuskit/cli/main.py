"""The command line: one file per command group, imported when it is called."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

import corpuskit
from corpuskit.cli._streams import discard_output, echo, open_streams
from corpuskit.cpu import start_quickly
from corpuskit.errors import CorpuskitError, describe, suggest

FOLDER = Path(__file__).parent
SECTIONS = {
    "Make a corpus": ("run", "plan", "status", "verify", "push"),
    "Look at data": ("audit",),
    "See what happened": ("report", "why", "inspect", "tune", "diff", "card", "contamination"),
    "Train on it": ("train", "evaluate", "ablate", "mixture", "trace", "edit", "export"),
    "Look things up": ("stages", "recipes", "schema", "doctor"),
    "Prepare": ("init", "tokenizer", "classifier", "languages", "unigrams", "warmup"),
}


class LazyGroup(click.Group):
    """Commands named by the files of this folder; help comes from their docstrings, unimported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all command names."""
        return sorted(path.stem for path in FOLDER.glob("[!_]*.py") if path.stem != "main")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command = import_module(f"corpuskit.cli.{cmd_name}").command
        assert isinstance(command, click.Command), f"cli/{cmd_name}.py must define `command`"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, or suggest one."""
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}. {suggest(args[0], names)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; if the reader of its output is gone, end without a message."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            discard_output()
            ctx.exit(0)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by what they are for."""
        commands = self.list_commands(ctx)
        sections = {title: [n for n in names if n in commands] for title, names in SECTIONS.items()}
        unlisted = sorted(set(commands) - {name for names in sections.values() for name in names})
        for title, names in {**sections, "Other": unlisted}.items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name, _summary(name)) for name in names])


def _summary(name: str) -> str:
    with (FOLDER / f"{name}.py").open(encoding="utf-8") as file:
        return file.readline().strip().strip('"')  # the docstring, without parsing the file


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: corpuskit run pipelines/quickstart.yaml",
)
@click.version_option(corpuskit.__version__, prog_name="corpuskit")
@click.option(  # `main` looks for it in the arguments
    "--traceback", is_flag=True, expose_value=False,
    help="Show the traceback of expected errors, too.",
)  # fmt: skip
def group() -> None:
    """Turn raw text into the token stream that a pretraining run consumes, and train on it.

    One YAML file describes a run. After a crash or an edit, run the same command again: finished
    work is reused.
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; expected errors are one message and an exit code.

    Exit codes: 0 done, 1 a task failed, 2 the request is wrong and nothing ran, 3 data is broken,
    4 a run did what `expect` does not allow.
    """
    if arguments is None:
        start_quickly()  # this process is ours
        arguments = sys.argv[1:]
    open_streams()
    try:
        group.main(args=arguments, prog_name="corpuskit", standalone_mode=True)
    except CorpuskitError as error:
        if "--traceback" in arguments:
            raise
        _fail(str(error), error.exit_code)
    except Exception as error:
        if "--traceback" in arguments:
            raise
        if isinstance(error, OSError):
            _fail(describe(error), 1)
        _fail(
            f"{describe(error)}. corpuskit did not expect this: run `corpuskit --traceback "
            f"{' '.join(arguments)}` to see where it happened, and report it.",
            1,
        )


def _fail(message: str, code: int) -> NoReturn:
    try:
        os.getcwd()
    except FileNotFoundError:
        message += " The working directory was deleted: change to another, run the command again."
    with contextlib.suppress(BrokenPipeError):
        echo(f"error: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
