"""Cells in waves: prepared side by side, each in a process of its own, then timed one after another.

Compiling the peers of a cell takes a core about a minute and the GPU next to nothing; timing takes a second or two and
needs the GPU for itself. So as many cells as memory and cores allow are prepared together, and nothing is timed before
all of them are ready. A process that dies or hangs costs its own cell.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, TypeAlias

from atoffer_rl.bench.cells import Cell
from atoffer_rl.errors import MemoryTaken
from atoffer_rl.kernels.child import Child, End, Job, JobMaker, Outcome

PREPARE_SECONDS = 400.0
SECONDS_A_REPLAY = 2.0
SPARE_SHARE = 0.05
"""Of free memory, what is left alone: libraries take some that torch does not count."""
OnEnd: TypeAlias = Callable[[Cell, dict[str, Any] | None, str], None]


@dataclass(frozen=True)
class Prepare:
    """Build, verify, compile and capture all of a cell.

    Attributes:
        cell: Which.
        is_alone: Whether no other cell is prepared beside it.
    """

    cell: Cell
    is_alone: bool


@dataclass(frozen=True)
class Time:
    """Time what was prepared, `replays` samples of each contender; the answer is the row."""

    replays: int


def make_cell_job() -> tuple[Job, None]:
    """The job function of a process that benches one cell."""
    # Processes side by side have a core each: more compiling threads in each would only be in each other's way.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch

    from atoffer_rl.bench.memory import MemoryShare
    from atoffer_rl.bench.mha import CellBench

    torch.set_num_threads(1)
    torch.cuda.init()
    shares: list[MemoryShare] = []
    benches: list[CellBench] = []

    def do(task: Prepare | Time) -> dict[str, Any] | None:
        if isinstance(task, Time):
            return benches[0].time(task.replays)
        shares.append(MemoryShare(task.cell.allowed_bytes, is_promised=not task.is_alone))
        benches.append(CellBench(task.cell, shares[0]))
        return None

    def job(task: Prepare | Time) -> dict[str, Any] | MemoryTaken | None:
        try:
            return do(task)
        except Exception as error:
            if shares and (taken := shares[0].taken(error)):
                return taken
            raise

    return job, None


def pack(sizes: Sequence[int], room: float, most: int) -> list[list[int]]:
    """Indices in as few groups as first-fit finds, each of at most `most` whose sizes add up to at most `room`.

    What is larger than `room` gets a group of its own.
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        for group in groups:
            if len(group) < most and sum(sizes[member] for member in group) + sizes[index] <= room:
                group.append(index)
                break
        else:
            groups.append([index])
    return groups


def waves_of(cells: Sequence[Cell], free_bytes: int, jobs: int) -> list[list[Cell]]:
    """The cells in waves that fit into `free_bytes` of GPU memory."""
    sizes = [cell.process_bytes for cell in cells]
    return [[cells[index] for index in group] for group in pack(sizes, (1 - SPARE_SHARE) * free_bytes, jobs)]


def free_bytes_here() -> int:
    """Free memory of the GPU at hand."""
    from cupy.cuda import runtime

    free: int = runtime.memGetInfo()[0]
    return free


def run_wave(
    cells: Sequence[Cell],
    replays: int,
    on_end: OnEnd,
    make_job: JobMaker = make_cell_job,
    prepare_seconds: float = PREPARE_SECONDS,
    seconds_a_replay: float = SECONDS_A_REPLAY,
) -> list[Cell]:
    """Prepare `cells` side by side, then time them one after another.

    Args:
        cells: What fits together.
        replays: Samples of each contender.
        on_end: Called for each cell with its row, or None and the reason why there is none.
        make_job: What each process does; tests plant others.
        prepare_seconds: Time limit of preparing a cell.
        seconds_a_replay: Time limit of timing it, for each of the replays.

    Returns:
        The cells from which others took memory that they were promised: to be tried again, with fewer beside them. A
        cell alone is never one of them.
    """
    again: list[Cell] = []

    def end(cell: Cell, doing: str, outcome: Outcome) -> None:
        if outcome.end is not End.ANSWERED:
            on_end(cell, None, f"while {doing}: {outcome.reason}")
        elif isinstance(outcome.value, MemoryTaken):
            again.append(cell)
        else:
            on_end(cell, outcome.value, "")

    children = [Child(make_job, f"atoffer-bench-{index}") for index in range(len(cells))]
    try:
        for child, cell in zip(children, cells, strict=True):
            child.submit(Prepare(cell, is_alone=len(cells) == 1), prepare_seconds)
        ready = []
        for child, cell, outcome in zip(children, cells, _outcomes(children), strict=True):
            if outcome.end is End.ANSWERED and outcome.value is None:
                ready.append((child, cell))
            else:
                child.kill()
                end(cell, "preparing", outcome)
        for child, cell in ready:
            child.submit(Time(replays), seconds_a_replay * replays)
            (outcome,) = _outcomes([child])
            child.kill()
            end(cell, "timing", outcome)
        return again
    finally:
        for child in children:
            child.kill()


def _outcomes(children: Sequence[Child]) -> list[Outcome]:
    """What came of each child's job, once all are over."""
    found: dict[int, Outcome] = {}
    while len(found) < len(children):
        for index, child in enumerate(children):
            outcome = child.outcome()
            if outcome is not None:
                found[index] = outcome
        waitables = [item for child in children for item in child.waitables]
        if waitables:
            wait(waitables, min(child.seconds_left for child in children))
    return [found[index] for index in range(len(children))]
