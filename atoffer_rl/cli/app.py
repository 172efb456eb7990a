"""The `atoffer` command: which subcommands there are, and how they end."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from atoffer_rl import __version__
from atoffer_rl.cli import (
    bench,
    doctor,
    evaluate,
    explain,
    export,
    masks,
    record,
    records,
    schemes,
    search,
    train,
    verify,
)
from atoffer_rl.cli.errors import run_guarded
from atoffer_rl.cli.interrupts import endings_interrupt

SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

app = typer.Typer(
    name="atoffer",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("train")(train.command)
app.command("search")(search.command)
app.command("eval")(evaluate.command)
app.command("record")(record.command)
app.add_typer(records.app, name="records")
app.add_typer(bench.app, name="bench")
app.command("export")(export.command)
app.command("verify")(verify.command)
app.command("explain")(explain.command)
app.command("schemes")(schemes.command)
app.command("masks")(masks.command)
app.command("doctor")(doctor.command)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"atoffer_rl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Version.")
    ] = False,
) -> None:
    """Search for the fastest way to run a sparse-attention encoder on a GPU.

    Example: atoffer schemes --count --batch 16 --seq-len 256 --mask strided
    """


def run(arguments: Sequence[str], program: str = "atoffer", command: str = "") -> int:
    """Run a command line; the exit status.

    Args:
        arguments: Its words.
        program: What messages call the program.
        command: The command that the program is; if empty, the first word names it.
    """
    group: Any = typer.main.get_command(app)
    target = group
    if command:
        target = group.commands[command]
        target.help = target.help.replace(f"atoffer {command} ", f"{program} ")
    words = list(arguments) or ([] if command else ["--help"])
    place = " ".join([program, *_command_in(target, words)])
    with endings_interrupt():
        return run_guarded(program, lambda: target(words, prog_name=program, standalone_mode=False, **SETTINGS), place)


def _command_in(group: Any, words: Sequence[str]) -> list[str]:
    """The words at the beginning of `words` that name a command."""
    named = []
    for word in words:
        if (group := getattr(group, "commands", {}).get(word)) is None:
            break
        named.append(word)
    return named
