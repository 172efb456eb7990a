"""`atoffer verify`: check and time an export on the GPU at hand, and settle which of its schemes is used."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from atoffer_rl.cli.options import JsonOption
from atoffer_rl.errors import ExportError

RUNTIME = "runtime.py"


def command(
    folder: Annotated[Path, typer.Argument(help="An export.")],
    json: JsonOption = False,
) -> None:
    """Check and time an export again, on the GPU here.

    Where its best scheme is wrong or slower, its safe scheme is used from now on.

    Example: atoffer verify out/scheme
    """
    from atoffer_rl.kernels.export.payload import runtime

    if not (folder / runtime.MANIFEST).is_file():
        remedy = "name a folder that atoffer export wrote"
        raise ExportError(f"{folder} is not an export: it has no {runtime.MANIFEST}; {remedy}")
    try:
        exported = runtime.read_manifest(folder)["files"]  # before what lies beside it is run
    except runtime.ExportError as error:
        raise ExportError(str(error)) from error
    if RUNTIME not in exported:
        raise ExportError(f"{folder} is not a whole export, it has no {RUNTIME}: export again")
    before = _stamp(folder / runtime.VERIFIED)
    # The export's own runtime, in its own process: what is checked is what will be deployed.
    script = (folder / RUNTIME).absolute()
    status = subprocess.call([sys.executable, str(script), "verify", *(["--json"] if json else [])])
    if status < 0:
        raise ExportError(f"the check of {folder} was killed by signal {-status}: nothing is verified")
    if status:
        raise typer.Exit(status)
    if _stamp(folder / runtime.VERIFIED) in (None, before):
        raise ExportError(f"{folder} verified nothing: export again")


def _stamp(path: Path) -> tuple[int, int] | None:
    """Of the file that is there now; it changes when the file is written again."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
