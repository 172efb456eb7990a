"""Complete tables: every legal choice of some workloads, the best again with more samples, and whole forwards."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from atoffer_rl.errors import StoreError
from atoffer_rl.kernels.measurers.cuda import CudaMeasurer
from atoffer_rl.kernels.recorder import OnProgress, Recorder, Tell
from atoffer_rl.quote import quote
from atoffer_rl.records import RECORDS_FOLDER, SUFFIX, RecordedTable, save_table
from atoffer_rl.table_summary import FORWARDS
from atoffer_rl.workload import Workload


@dataclass(frozen=True)
class Recording:
    """What a call of `record_table` achieved.

    Attributes:
        table: The table as far as it goes; None while no workload's segments are complete.
        path: Its file, if it was written.
        complete: Whether everything that was asked for is in it, and nothing is to be measured again.
        measured: Trials taken by this call, also for tables that it gave up because the machine changed.
    """

    table: RecordedTable | None
    path: Path | None
    complete: bool
    measured: int


def record_table(
    measurer: CudaMeasurer,
    workloads: Sequence[Workload],
    name: str,
    *,
    forwards: int = FORWARDS,
    seconds: float | None = None,
    folder: Path = RECORDS_FOLDER,
    tell: Tell = lambda line: None,
    progress: OnProgress = lambda phase, done, total: None,
) -> Recording:
    """Measure the complete table of `workloads`, or go on with it, and write `folder`/`name`.jsonl.gz.

    What an earlier call left in the measurer's store is kept if it belongs to this machine and its anchors agree
    within 3% with those timed now; otherwise a new table is begun. The file holds the workloads whose segments
    are complete, so a call that runs out of time may leave fewer workloads, or fewer forwards.

    Args:
        measurer: The GPU; its store keeps what was measured between calls.
        workloads: What to record; a signature that several share is measured once.
        name: Name of the file: up to 100 letters, digits, `_`, `.` or `-`.
        forwards: Whole forwards of each workload: the 32 least sums, in several rounds whose samples are pooled, and
            others spread over the range of sums.
        seconds: Stop cleanly after about this long; None means no limit.
        folder: Where the file is written.
        tell: Called with lines for the user.
        progress: Called with a phase, what is done of it, and its total.

    Raises:
        DeviceUnavailable: If the GPU was lost.
        StoreError: If a trial or the table cannot be kept, or the name cannot be one.
    """
    _check_name(name)
    _check_writable(folder)
    deadline = time.monotonic() + (seconds if seconds is not None else float("inf"))
    measured = 0
    while True:
        recorder = Recorder(measurer, tuple(workloads), deadline, tell, progress)
        complete = recorder.measure(forwards)
        measured += recorder.measured
        if not recorder.machine_changed or time.monotonic() >= deadline:
            break
    table = recorder.table()
    if table is None:
        return Recording(None, None, complete, measured)
    path = folder / f"{name}{SUFFIX}"
    save_table(table, path)
    return Recording(table, path, complete, measured)


def _check_name(name: str) -> None:
    """Find out before hours of measuring whether the file can be called so, and stays in its folder."""
    if re.fullmatch(r"[\w.-]{1,100}", name, re.ASCII) is None:
        raise StoreError(
            f"a table cannot be called {quote(name)}: choose a --name of 1 to 100 letters, digits, '_', '.' or '-'"
        )


def _check_writable(folder: Path) -> None:
    """Find out before hours of measuring whether the table can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StoreError(f"cannot write into {folder}: {error.strerror}; choose another --folder") from error
