"""What the scripts in `benchmarks/` share: how they end, and what their options take."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import NoReturn

from atoffer_rl.errors import AtofferError


def run_script(main: Callable[[], int | None]) -> NoReturn:
    """Run `main` and exit with its status; a user's mistake becomes one line on stderr, and status 1."""
    try:
        sys.exit(main())
    except AtofferError as error:
        sys.exit(f"error: {error}")


def positive(text: str) -> int:
    """What an option that counts something takes.

    Raises:
        ArgumentTypeError: If `text` is no such number.
    """
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)
