"""`atoffer record`: measure a workload's complete table on the GPU at hand; go on where it was interrupted."""

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoffer_rl.cli.json_file import read_json
from atoffer_rl.cli.options import (
    WORKLOAD_NAMES,
    JsonOption,
    ProgressOption,
    StoreOption,
    refuse_options,
    workload_options,
)
from atoffer_rl.cli.output import print_json, print_line
from atoffer_rl.cli.progress_bar import ProgressBar, shows_progress
from atoffer_rl.errors import AtofferError, NotRecorded, WorkloadError
from atoffer_rl.records import RECORDS_FOLDER, RecordedTable, describe
from atoffer_rl.table_summary import FORWARDS, SumCheck, check_sums
from atoffer_rl.workload import Workload

if TYPE_CHECKING:
    from atoffer_rl.kernels.recording import Recording


@workload_options
def command(
    *,
    context: typer.Context,
    workload: Workload,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the table's file.")] = "table",
    workloads: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON file with a list of workloads to record together, instead of one."),
    ] = None,
    forwards: Annotated[
        int, typer.Option(metavar="N", min=0, help="Whole forwards to measure of each workload.")
    ] = FORWARDS,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="SECONDS",
            min=0,
            help="Stop cleanly after about so many, by the clock. [default: no limit]",
        ),
    ] = None,
    store: StoreOption = None,
    folder: Annotated[
        Path,
        typer.Option(
            "--folder",
            metavar="FOLDER",
            show_default=False,
            help="Where the table is written. [default: beside the tables of the package, where replay finds it]",
        ),
    ] = RECORDS_FOLDER,
    progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Measure every legal choice of a workload, live.

    The same command again goes on where an earlier one stopped.

    Example: atoffer record --batch 16 --seq-len 256 --mask strided --name bert-16-256
    """
    from atoffer_rl.kernels.measurers.open import default_store, open_cuda
    from atoffer_rl.kernels.recording import record_table

    if seconds is not None and isnan(seconds):
        raise AtofferError("--seconds must be a number: leave it out for no limit")
    if workloads is not None:
        refuse_options(context, WORKLOAD_NAMES, "--workloads says what is recorded")
    asked = read_workloads(workloads) if workloads is not None else [workload]
    place = store or default_store()
    # The store's own cubins: recorded compile seconds are those of compiling, not of finding.
    measurer, line = open_cuda(place, cubin_folder=place.parent / "record-cubins")
    _say(line, json)
    try:
        with ProgressBar(shows_progress(progress, quiet=json)) as bar:
            recording = record_table(
                measurer,
                asked,
                name,
                forwards=forwards,
                seconds=seconds,
                folder=folder,
                tell=lambda text: _say(text, json),
                progress=bar.show,
            )
    finally:
        measurer.close()
    _report(recording, place, json)


def _report(recording: "Recording", store: Path, json: bool) -> None:
    checks = _checks(recording.table) if recording.table is not None else {}
    if json:
        print_json(
            {
                "path": str(recording.path) if recording.path is not None else None,
                "complete": recording.complete,
                "measured": recording.measured,
                "workloads": {describe(item): summary(check) for item, check in checks.items()},
            }
        )
        return
    for item, check in checks.items():
        print_line(f"{describe(item)}: {sentence(check)}")
    if recording.path is not None:
        print_line(f"table written to {recording.path} ({recording.path.stat().st_size:,} bytes)")
    if not recording.complete:
        print_line(f"not complete yet: run the same command again to go on (trials kept in {store})")


def read_workloads(path: Path) -> list[Workload]:
    """The workloads in a JSON file.

    Raises:
        WorkloadError: If it cannot be read, or holds no list of workloads.
    """
    values = read_json(path, WorkloadError, "workloads")
    if not isinstance(values, list) or not values:
        raise WorkloadError(f"{path} must hold a JSON list of workloads")
    try:
        return [Workload.from_json(value) for value in values]
    except WorkloadError as error:
        raise WorkloadError(f"{path}: {error}") from error


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        print_line(text)


def _checks(table: RecordedTable) -> dict[Workload, SumCheck]:
    from atoffer_rl.kernels.legal_space import LegalSpace

    checks = {}
    for workload in table.header.workloads:
        try:
            checks[workload] = check_sums(table, workload, LegalSpace(workload, table.device))
        except NotRecorded:
            continue  # its forwards are still to come
    return checks


def summary(check: SumCheck) -> dict[str, Any]:
    """A check of sums as plain JSON values."""
    return vars(check) | {"oracle_excess": check.oracle_excess}


def sentence(check: SumCheck) -> str:
    """A check of sums in words."""
    return (
        f"best layer {check.oracle_us:.1f} us; over {check.forwards} forwards the rank correlation with sums is "
        f"{check.rank_correlation:.3f}, {check.sum_over_forward:.3f} of a forward is its sum, and the best scheme's "
        f"own forward is {check.oracle_excess:+.1%} from the best among the finalists"
    )
