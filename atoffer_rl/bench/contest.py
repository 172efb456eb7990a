"""Contenders captured, compared with the first of them, and timed in turns."""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeAlias

import torch

from atoffer_rl.bench.graph_timing import capture, choose_replay, time_in_turns
from atoffer_rl.bench.memory import MemoryShare
from atoffer_rl.errors import LaunchError
from atoffer_rl.kernels.child import first_line
from atoffer_rl.kernels.verify import Verdict

OURS = "ours"
LARGEST_DIFFERENCE = 0.05
"""Between a peer's result and ours, over the largest value: formats differ by less, a wrong mask by more."""
LONGEST_REASON = 200
SPIN_SECONDS = 0.3
Launch: TypeAlias = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Contender:
    """Something to time.

    Attributes:
        name: As reports name it.
        prepare: Builds (and compiles) it; the launch it gives returns the result tensor.
        option: One of several ways to run it, of which the fastest counts.
    """

    name: str
    prepare: Callable[[], Launch]
    option: str = ""

    @property
    def key(self) -> str:
        """What tells it from the others."""
        return f"{self.name} {self.option}".strip()


@dataclass(frozen=True)
class Standing:
    """What a contest gave.

    Attributes:
        samples_us: All samples by contender, ours included.
        errors: Why a contender could not run, by name.
        options: The fastest option of each contender that has several, by name.
    """

    samples_us: dict[str, list[float]]
    errors: dict[str, str]
    options: dict[str, str] = field(default_factory=dict)

    @property
    def latencies_us(self) -> dict[str, float]:
        """Median latency by contender."""
        return {name: round(median(samples), 3) for name, samples in self.samples_us.items()}


class Contest:
    """Contenders, each built, run and captured; those that fail are named with their reason.

    Args:
        contenders: The first is ours, whose result the others' must resemble.
        launches: How many calls each of a contender's graphs holds.
        share: GPU memory that they may take; None if that is all there is.

    Raises:
        LaunchError: If ours fails.
        MemoryTaken: If one finds no memory because other processes have taken of the share.
    """

    def __init__(
        self, contenders: Sequence[Contender], launches: Sequence[int], share: MemoryShare | None = None
    ) -> None:
        self._result: torch.Tensor | None = None
        self._contenders = contenders
        self._launches = launches
        self._share = share
        self._pool = torch.cuda.graph_pool_handle()
        self._kept: list[Launch] = []
        self._graphs: dict[str, dict[int, torch.cuda.CUDAGraph]] = {}
        self._errors: dict[str, str] = {}
        for contender in contenders:
            self._prepare(contender)
            torch.cuda.empty_cache()  # what a failed one held is not the next one's to miss
            if contenders[0].key in self._errors:
                raise LaunchError(self._errors[contenders[0].key])

    @property
    def result(self) -> torch.Tensor:
        """Ours."""
        assert self._result is not None
        return self._result

    def _prepare(self, contender: Contender) -> None:
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            try:
                launch = contender.prepare()
                with torch.no_grad():
                    self._compare(launch())
                    self._graphs[contender.key] = capture(launch, self._launches, self._pool)
                self._kept.append(launch)
            except Exception as error:
                if self._share is not None and (taken := self._share.taken(error)):
                    raise taken from error
                texts = [str(warning.message) for warning in noted]
                self._errors[contender.key] = reason_of(error, texts, self._share)
                # A capture that failed may have left the allocator believing that it goes on in that pool.
                self._pool = torch.cuda.graph_pool_handle()

    def _compare(self, result: torch.Tensor) -> None:
        if self._result is None:
            self._result = result.clone()
            return
        if result.isnan().any() and not self.result.isnan().any():
            raise RuntimeError("it gives NaN where ours does not, as for rows that keep nothing")
        difference = (result - self.result).abs().amax().item()
        if not difference <= LARGEST_DIFFERENCE * self.result.abs().amax().item():
            raise RuntimeError(f"its result differs from ours by up to {difference:.3g}")

    def time(self, replays: int) -> Standing:
        """Time all in turns, on a GPU that does nothing else."""
        chosen = {key: choose_replay(graphs) for key, graphs in self._graphs.items()}
        start = time.perf_counter()
        while chosen and time.perf_counter() - start < SPIN_SECONDS:  # until clocks are what work makes them
            next(iter(chosen.values())).graph.replay()
            torch.cuda.synchronize()
        return best_options(self._contenders, time_in_turns(chosen, replays), self._errors)


def best_options(
    contenders: Sequence[Contender], samples_us: dict[str, list[float]], errors: dict[str, str]
) -> Standing:
    """The standing in which each name has its fastest option's samples, or else its first option's reason.

    Args:
        contenders: Who took part.
        samples_us: Samples by contender's key.
        errors: Reasons by contender's key.
    """
    samples: dict[str, list[float]] = {}
    options: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for contender in contenders:
        name, found = contender.name, samples_us.get(contender.key)
        if found is None:
            reasons.setdefault(name, errors[contender.key])
        elif name not in samples or median(found) < median(samples[name]):
            samples[name] = found
            if contender.option:
                options[name] = contender.option
    return Standing(samples, {name: reason for name, reason in reasons.items() if name not in samples}, options)


def reason_of(error: BaseException, noted: Sequence[str], share: MemoryShare | None = None) -> str:
    """Why a contender failed, in one line.

    Args:
        error: What it raised.
        noted: Warnings given before: SDPA tells in them why it has no kernel.
        share: What it was to keep to.
    """
    if isinstance(error, torch.OutOfMemoryError):
        if share is None:
            return "out of memory"
        return f"needs more GPU memory than the {share.size_bytes / 1e9:.1f} GB that a cell may take"
    line = first_line(error)
    if error.__context__ is not None and "capture" in line:  # the end of a capture that something else broke
        return reason_of(error.__context__, noted, share)
    if line.endswith("raised:"):  # the compiler, of what went wrong in it
        line = next((below for below in map(str.strip, str(error).strip().splitlines()[1:]) if below), line)
    if line.startswith("No available kernel"):
        told = [text.split("(Triggered internally")[0].strip() for text in noted]
        causes = [text for text in told if "because:" not in text and "runtime disabled" not in text]
        line = (causes or [line])[0]
    return line[:LONGEST_REASON]


def row_of(standing: Standing, verdict: Verdict, floor_us: float) -> dict[str, Any]:
    """The fields that every kind of benchmark row shares.

    Args:
        standing: The contest.
        verdict: On our result.
        floor_us: Time that moving the bytes once takes.
    """
    latencies_us = standing.latencies_us
    ours_us = latencies_us.pop(OURS)
    return {
        "ours_us": ours_us,
        "peers": latencies_us,
        "peer_errors": standing.errors,
        "peer_options": {name: option for name, option in standing.options.items() if name != OURS},
        "speedup": round(min(latencies_us.values()) / ours_us, 3) if latencies_us else None,
        "max_error": verdict.max_error,
        "error_budget": verdict.error_budget,
        "bytes_floor_us": round(floor_us, 3),
        "samples_us": standing.samples_us,
    }
