"""Reads JSON that users and other tools wrote."""

import json
from pathlib import Path
from typing import Any

from atoffer_rl.errors import AtofferError


def read_json(path: Path, kind: type[AtofferError], what: str) -> Any:
    """What the JSON file `path` holds.

    Args:
        path: The file; a byte order mark at its beginning is passed over.
        kind: What is raised if it cannot be read.
        what: What the file is meant to hold, for the message.

    Raises:
        AtofferError: Of `kind`, if the file cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise kind(f"cannot read {what} {path}: {error.strerror or error}") from error
    except RecursionError as error:
        raise kind(f"{path} is nested too deeply to be {what}") from error
    except ValueError as error:
        raise kind(f"{path} is not JSON: {error}") from error
