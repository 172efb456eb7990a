"""One cell of a benchmark: every contender captured, checked against float64, timed in turns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeAlias

import torch

from atoffer_rl.bench.graph_timing import capture, time_in_turns
from atoffer_rl.kernels.verify import Verdict

OURS = "ours"
Launch: TypeAlias = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Contender:
    """Something to time.

    Attributes:
        name: As reports name it.
        prepare: Builds (and compiles) it; the launch it gives returns the result tensor.
    """

    name: str
    prepare: Callable[[], Launch]


@dataclass(frozen=True)
class Standing:
    """What a contest gave.

    Attributes:
        samples_us: All samples by contender, ours included.
        errors: Why a contender could not run, by name.
        results: Each contender's result.
    """

    samples_us: dict[str, list[float]]
    errors: dict[str, str]
    results: dict[str, torch.Tensor] = field(repr=False)

    @property
    def latencies_us(self) -> dict[str, float]:
        """Median latency by contender."""
        return {name: round(median(samples), 3) for name, samples in self.samples_us.items()}


def hold(contenders: Sequence[Contender], launches: int, replays: int) -> Standing:
    """Prepare every contender, capture `launches` calls of each, and time all in turns.

    A contender that fails (out of memory, unsupported, not capturable) is named with its reason.
    """
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    errors: dict[str, str] = {}
    results: dict[str, torch.Tensor] = {}
    kept: list[Launch] = []
    for contender in contenders:
        try:
            launch = contender.prepare()
            with torch.no_grad():
                results[contender.name] = launch().clone()
                graphs[contender.name] = capture(launch, launches)
            kept.append(launch)
        except Exception as error:  # noqa: BLE001  whatever stops a peer is its reason, not the bench's end
            errors[contender.name] = str(error).strip().splitlines()[0][:200] if str(error) else repr(error)
            results.pop(contender.name, None)
    return Standing(time_in_turns(graphs, launches, replays), errors, results)


def row_of(standing: Standing, verdict: Verdict, floor_us: float) -> dict[str, Any]:
    """The fields that every kind of benchmark row shares.

    Args:
        standing: The contest.
        verdict: On our result.
        floor_us: Time that moving the bytes once takes.
    """
    latencies_us = standing.latencies_us
    ours_us = latencies_us.pop(OURS)
    fastest = min(latencies_us.values(), default=float("nan"))
    return {
        "ours_us": ours_us,
        "peers": latencies_us,
        "peer_errors": standing.errors,
        "speedup": round(fastest / ours_us, 3),
        "max_error": verdict.max_error,
        "error_budget": verdict.error_budget,
        "bytes_floor_us": round(floor_us, 3),
        "samples_us": standing.samples_us,
    }
