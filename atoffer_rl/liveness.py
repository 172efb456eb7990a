"""Which activations live when, and where each lies in one arena whose size is the largest live set.

A layer's input `x` lies at the bottom of the arena and its output `y` at the top. The next layer uses the mirror
image of the plan, in which `x` is at the top: where the layer before left its `y`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from atoffer_rl.operators import LAYER_INPUT, LAYER_OUTPUT, run_activations, run_results
from atoffer_rl.run import Run
from atoffer_rl.tensors import ALIGNMENT_BYTES, layer_tensors
from atoffer_rl.workload import Workload


@dataclass(frozen=True)
class Lifetime:
    """A stored activation.

    Attributes:
        name: Its name in `operators.OPERATORS`.
        size_bytes: Bytes it occupies, a multiple of the alignment.
        first: Segment that writes it (the first segment for the layer's input).
        last: Last segment that reads it (the last segment for the layer's output).
    """

    name: str
    size_bytes: int
    first: int
    last: int

    def meets(self, other: "Lifetime") -> bool:
        """Whether both live during some segment."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class BufferPlan:
    """Where every stored activation of a layer lies.

    Attributes:
        offsets_bytes: Offset in the arena by name, `x` and `y` included.
        sizes_bytes: Bytes each occupies, multiples of the alignment.
        peak_bytes: Size of the arena.
    """

    offsets_bytes: dict[str, int]
    sizes_bytes: dict[str, int]
    peak_bytes: int

    def mirrored(self) -> "BufferPlan":
        """The plan of the layers in between: `x` at the top, `y` at the bottom."""
        sizes = self.sizes_bytes
        offsets = {name: self.peak_bytes - offset - sizes[name] for name, offset in self.offsets_bytes.items()}
        return BufferPlan(offsets, sizes, self.peak_bytes)


def lifetimes(workload: Workload, runs: Sequence[Run]) -> tuple[Lifetime, ...]:
    """The activations that a layer cut into `runs` stores, in the order in which they are written."""
    first = {LAYER_INPUT: 0}
    last: dict[str, int] = {}
    for segment, run in enumerate(runs):
        last |= dict.fromkeys(run_activations(run), segment)
        first |= dict.fromkeys(run_results(run), segment)
    last[LAYER_OUTPUT] = len(runs) - 1
    stored = layer_tensors(workload)
    return tuple(Lifetime(name, _aligned(stored[name].size_bytes), start, last[name]) for name, start in first.items())


def largest_live_set(lives: Sequence[Lifetime]) -> int:
    """Bytes that live at once, at most: a segment's inputs and results, and what later segments read."""
    segments = range(max(life.last for life in lives) + 1)
    return max(sum(life.size_bytes for life in lives if life.first <= now <= life.last) for now in segments)


@lru_cache(maxsize=1024)
def plan_buffers(workload: Workload, runs: tuple[Run, ...]) -> BufferPlan:
    """A plan for a layer cut into `runs` in which nothing overlaps what lives at the same time.

    The arena is the largest live set, except for a few cuts into two to four very long runs (that no template
    implements), where `x` at the bottom, `y` at the top and that size exclude each other: there it is larger.
    """
    lives = lifetimes(workload, runs)
    ends = {life.name: life for life in lives if life.name in (LAYER_INPUT, LAYER_OUTPUT)}
    # The largest first: small ones find room between them, and a gap's ends are then the only places to try.
    between = sorted((life for life in lives if life.name not in ends), key=lambda life: -life.size_bytes)
    peak, step = largest_live_set(lives), min(life.size_bytes for life in lives)
    while True:
        placed = {ends[LAYER_INPUT]: 0, ends[LAYER_OUTPUT]: peak - ends[LAYER_OUTPUT].size_bytes}
        if _place(between, placed, peak):
            offsets = {life.name: offset for life, offset in placed.items()}
            return BufferPlan(offsets, {life.name: life.size_bytes for life in lives}, peak)
        peak += step


def _place(lives: Sequence[Lifetime], placed: dict[Lifetime, int], peak: int) -> bool:
    """Extend `placed` by all of `lives`, each at an end of a gap, below `peak`; says whether that is possible."""
    if not lives:
        return True
    life, *rest = lives
    for offset in _gap_ends(life, placed, peak):
        placed[life] = offset
        if _place(rest, placed, peak):
            return True
        del placed[life]
    return False


def _gap_ends(life: Lifetime, placed: dict[Lifetime, int], peak: int) -> list[int]:
    """Offsets at which `life` touches the bottom or the top of a gap that holds it."""
    busy = sorted((offset, offset + other.size_bytes) for other, offset in placed.items() if other.meets(life))
    # What is busy may overlap, when it does not live together: a gap begins after all that began before it.
    lows = accumulate((end for _, end in busy), max, initial=0)
    highs = [*(start for start, _ in busy), peak]
    offsets: dict[int, None] = {}
    for low, high in zip(lows, highs, strict=True):
        if high - low >= life.size_bytes:
            offsets |= {low: None, high - life.size_bytes: None}
    return list(offsets)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
