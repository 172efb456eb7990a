"""`atoffer verify`: check and time an export on the GPU at hand, and settle which of its schemes is used."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from atoffer_rl.cli.options import JsonOption
from atoffer_rl.errors import ExportError


def command(
    folder: Annotated[Path, typer.Argument(help="An export.")],
    json: JsonOption = False,
) -> None:
    """Re-check and re-time an export here; the safe scheme is used from now on where the best is wrong or slower.

    Example: atoffer verify out/scheme
    """
    runtime = folder / "runtime.py"
    if not runtime.is_file():
        raise ExportError(f"{folder} is not an export: it has no runtime.py")
    # The export's own runtime, in its own process: what is checked is what will be deployed.
    status = subprocess.call([sys.executable, str(runtime), "verify", *(["--json"] if json else [])])
    if status:
        raise typer.Exit(status)
