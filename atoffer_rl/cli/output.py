"""Tables for people and JSON for programs, on stdout."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def print_json(value: Any) -> None:
    """Write `value` as indented JSON."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_line(text: str = "") -> None:
    """Write one line."""
    sys.stdout.write(text + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write aligned columns; those whose cells are all numbers are right-aligned."""
    cells = [[str(cell) for cell in row] for row in rows]
    numeric = [bool(cells) and all(_is_number(row[index]) for row in cells) for index in range(len(columns))]
    widths = [max(len(row[index]) for row in [list(columns), *cells]) for index in range(len(columns))]
    for row in [list(columns), *cells]:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ]
        print_line("  ".join(padded).rstrip())


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").replace("%", "").strip("-").isdigit() or text in ("", "-")
