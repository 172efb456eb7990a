"""A whole run of `bench mha`: our choices found, cells run in waves, each row kept at once; it goes on if stopped."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from atoffer_rl.bench.cells import Cell, choices_hash, device_here, find_cells, identity_of, name_of
from atoffer_rl.bench.record import machine_here
from atoffer_rl.bench.record_file import RecordFile, key_of
from atoffer_rl.bench.waves import free_bytes_here, run_wave, waves_of
from atoffer_rl.kernels.measurers.protocol import Measurer
from atoffer_rl.workload import Workload

Say: TypeAlias = Callable[[str], None]


class MhaRun:
    """Cells to bench on the GPU at hand.

    Args:
        workloads: The cells.
        path: The record's file, if there is to be one. Rows that it holds are not taken again, as long as our kernels
            are what they were.
        say: Told in a line what happens.

    Raises:
        DeviceUnavailable: If there is no usable GPU.
        LogError: If the file cannot be used, or is another machine's.
    """

    def __init__(self, workloads: Sequence[Workload], path: Path | None, say: Say) -> None:
        self._say = say
        device = device_here()
        self._workloads = {key_of(identity_of(workload)): workload for workload in workloads}

        def is_current(row: dict[str, Any]) -> bool:
            workload = self._workloads.get(key_of(row))
            return workload is None or row.get("ours_source") == choices_hash(workload, device)

        places = {key: place for place, key in enumerate(self._workloads)}

        def place_of(row: dict[str, Any]) -> int:
            return places.get(key_of(row), len(places))

        self._record = RecordFile(path, machine_here(), is_current, place_of)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of these cells so far, in the cells' order."""
        return [row for row in self._record.rows if key_of(row) in self._workloads]

    @property
    def todo(self) -> list[Workload]:
        """The cells that have no row yet."""
        done = {key_of(row) for row in self._record.rows}
        return [workload for key, workload in self._workloads.items() if key not in done]

    def find_cells(self, measurer: Measurer) -> list[Cell]:
        """Our choice for every cell that has no row yet.

        Raises:
            DeviceUnavailable: If the GPU was lost for good.
            StoreError: If a trial cannot be kept.
        """
        cells, failures = find_cells(self.todo, measurer)
        for workload, reason in failures.items():
            self._fail(workload, reason)
        return cells

    def run(self, cells: Sequence[Cell], replays: int, jobs: int) -> None:
        """Bench `cells`, so many side by side; a cell that fails is told and noted.

        Cells whose memory others take are tried again, with at most half as many side by side.

        Raises:
            LogError: If a row cannot be written.
        """
        left = list(cells)
        while left:
            wave = waves_of(left, free_bytes_here(), jobs)[0]
            self._say(f"{len(wave)} of {len(left)} cells are prepared, then timed one by one")
            again = run_wave(wave, replays, self._end)
            for cell in again:
                self._say(f"{name_of(cell.workload)}: others took its memory; it is tried again, with fewer beside it")
            jobs = max(1, len(wave) // 2) if again else jobs
            left = [cell for cell in left if cell not in wave or cell in again]

    def finish(self) -> None:
        """Write the record where it could not be written after every row, as into a pipe.

        Raises:
            LogError: If it cannot be written.
        """
        self._record.finish()

    def _end(self, cell: Cell, row: dict[str, Any] | None, reason: str) -> None:
        if row is None:
            self._fail(cell.workload, reason)
            return
        self._record.add(row)
        fastest = min(row["peers"], key=lambda name: row["peers"][name], default="no peer")
        beside = f", {fastest} {row['peers'][fastest]:.1f} us" if row["peers"] else ""
        self._say(f"{name_of(cell.workload)}: ours {row['ours_us']:.1f} us{beside}")
        for name, why in row["peer_errors"].items():
            self._say(f"  {name} cannot run it: {why}")

    def _fail(self, workload: Workload, reason: str) -> None:
        self._record.fail(name_of(workload), reason)
        self._say(f"{name_of(workload)} has no row: {reason}")
