"""Starts the command line so that Ctrl-C ends it in one line from the first moment on; imports nothing before that."""

import sys

INTERRUPTED = 130
INTERRUPTION = "interrupted; everything measured so far is kept"


def start(arguments: list[str], program: str, command: str = "") -> int:
    """Import the command line and run it; the exit status.

    Args:
        arguments: Its words.
        program: What messages call the program.
        command: The command that the program is; if empty, the first word names it.
    """
    try:
        from atoffer_rl.cli.app import run

        return run(arguments, program, command)
    except KeyboardInterrupt:
        sys.stderr.write(f"{program}: {INTERRUPTION}\n")
        return INTERRUPTED


def main() -> None:
    """The console script."""
    sys.exit(start(sys.argv[1:], program="atoffer"))
