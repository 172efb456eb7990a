"""Reads JSON that users and other tools wrote."""

from pathlib import Path
from typing import Any

from atoffer_rl.errors import AtofferError, FileError
from atoffer_rl.json_text import parse_json
from atoffer_rl.regular_file import read_regular
from atoffer_rl.whole_file import os_reason

MOST_BYTES = 2**22


def read_json(path: Path, kind: type[AtofferError], what: str) -> Any:
    """What the JSON file `path` holds.

    Args:
        path: The file, a regular one of at most `MOST_BYTES`; a byte order mark at its beginning is passed over.
        kind: What is raised if it cannot be read.
        what: What the file is meant to hold, for the message.

    Raises:
        AtofferError: Of `kind`, if the file cannot be read, or is no JSON with one meaning.
    """
    try:
        return parse_json(read_regular(path, MOST_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise kind(f"cannot read {what} {path}: {os_reason(error)}") from error
    except FileError as error:
        raise kind(f"cannot read {what}: {error}") from error
    except ValueError as error:
        raise kind(f"cannot read {what} {path}: {error}; mend it, or choose another file") from error
