"""What is benchmarked in a cell, how much memory that takes, and our choices for it."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from atoffer_rl.device import DeviceSpec
from atoffer_rl.dtype import DType
from atoffer_rl.errors import DeviceUnavailable
from atoffer_rl.kernels.choice_program import template_program
from atoffer_rl.kernels.cubin_cache import program_hash
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.measurers.protocol import Measurer
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.table_summary import latencies
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.trial import SegmentRequest
from atoffer_rl.workload import Workload

ATTENTION = Run(2, 6)
CONTEXT_BYTES = 2**30
"""What a process takes of the GPU before it has a tensor."""
SPILL_BYTES = 11 * 2**30
"""What float32 takes besides: registers of FlexAttention's kernels spill into local memory, of which the driver keeps
as much as all threads that fit on the GPU could need."""
WORKSPACE_BYTES = 2**30
"""What libraries take for themselves through torch."""
PROJECTIONS = 6
"""QKV as drawn, biased, and for each of them what drawing and comparing it take."""
SCORE_BYTES = 24
"""Naive attention's scores: three float32 tensors of them, once while it warms up and once in its graph."""
EXACT_SCORE_BYTES, EXACT_SCORES_AT_ONCE = 48, 2**26
"""The float64 reference's: six tensors, of so many scores, or of one sequence's."""
MOST_BYTES = 24 * 2**30
"""What no cell may exceed: peers that need more are the slowest there, and say that they ran out."""
TIMED_CHOICES = 6
"""Of our choices, the fastest after a neighbour: alone, as the peers are timed, another of them may be."""
IDENTITY = ("mask", "batch", "seq_len", "heads", "head_dim", "dtype")


@dataclass(frozen=True)
class Cell:
    """A workload with our choices for operators 2 to 6.

    Attributes:
        workload: Shapes, dtype and mask.
        fastest: The fastest few of ours, in that order.
        choices_hash: Of all that ours could have been, so that a row is known to be of today's kernels.
    """

    workload: Workload
    fastest: tuple[Choice, ...]
    choices_hash: str

    @property
    def allowed_bytes(self) -> int:
        """GPU memory that its tensors may take."""
        return allowed_bytes(self.workload)

    @property
    def process_bytes(self) -> int:
        """GPU memory that its process may take."""
        spilled = SPILL_BYTES if self.workload.element is DType.FLOAT32 else 0
        return self.allowed_bytes + CONTEXT_BYTES + spilled


def identity_of(workload: Workload) -> dict[str, Any]:
    """The fields of a row that tell its workload from others."""
    return {name: getattr(workload, name) for name in IDENTITY}


def name_of(workload: Workload) -> str:
    """A cell as messages name it."""
    w = workload
    mask = w.mask if len(w.mask) <= 50 else f"{w.mask[:47]}..."
    return f"{mask} at B {w.batch}, S {w.seq_len}, H {w.heads}, W {w.head_dim}, {w.dtype}"


def allowed_bytes(workload: Workload) -> int:
    """GPU memory that the contenders of a cell and its reference are allowed, enough for all but the largest."""
    entry = workload.heads * workload.seq_len**2
    projections = PROJECTIONS * layer_tensors(workload)["qkv"].size * 4
    at_once = max(entry, min(workload.score_count, EXACT_SCORES_AT_ONCE))
    scores = max(SCORE_BYTES * workload.score_count, EXACT_SCORE_BYTES * at_once)
    return min(MOST_BYTES, WORKSPACE_BYTES + projections + scores)


def choices_hash(workload: Workload, device: DeviceSpec) -> str:
    """A hash of every program that ours could be for `workload`."""
    return programs_hash(workload, LegalSpace(workload, device).choices(ATTENTION))


def programs_hash(workload: Workload, choices: Iterable[Choice]) -> str:
    """A hash of the programs of `choices`, in order."""
    hashes = [program_hash(template_program(workload, choice)) for choice in choices]
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:16]


def find_cells(workloads: Sequence[Workload], measurer: Measurer) -> tuple[list[Cell], dict[Workload, str]]:
    """Our fastest choices for each workload, found by measuring all of them; and why there is none, where so.

    What the measurer's store holds is not measured again.

    Raises:
        DeviceUnavailable: If the GPU was lost for good.
        StoreError: If a trial cannot be kept.
    """
    requests: dict[Workload, list[SegmentRequest]] = {}
    failures: dict[Workload, str] = {}
    for workload in workloads:
        choices = LegalSpace(workload, measurer.device).choices(ATTENTION)
        if choices:
            requests[workload] = [SegmentRequest(workload, choice) for choice in choices]
        else:
            failures[workload] = "no attention kernel is legal here"
    # All at once, so that compilers work ahead of the GPU across cells.
    trials = iter(measurer.measure([request for group in requests.values() for request in group]))
    cells = []
    for workload, group in requests.items():
        answers = {request.choice: next(trials) for request in group}
        latencies_us = latencies(answers)
        if latencies_us:
            ranked = sorted(latencies_us, key=latencies_us.__getitem__)
            cells.append(Cell(workload, tuple(ranked[:TIMED_CHOICES]), choices_hash(workload, measurer.device)))
        else:
            reasons = dict.fromkeys(f"{trial.status.value}: {trial.reason}" for trial in answers.values())
            failures[workload] = f"no attention kernel is right here ({'; '.join(reasons)})"
    return cells, failures


def device_here() -> DeviceSpec:
    """The GPU at hand.

    Raises:
        DeviceUnavailable: If there is none that can be used; names what is missing.
    """
    from atoffer_rl.kernels.machine import current_device, what_is_missing

    if missing := what_is_missing():
        raise DeviceUnavailable(f"a benchmark needs {missing}")
    return current_device()
