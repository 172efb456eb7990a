"""What a policy is trained on before it meets a workload: recorded tables of other workloads, perturbed.

A table is perturbed within its structure: all choices of a run, of a template, of a template for one run, and
with one value of one parameter are scaled together by log-normal factors, and each choice by a little of its
own. A policy trained on many such tables has to read measurements; it cannot remember one table.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atoffer_rl.device import DeviceSpec
from atoffer_rl.errors import NotRecorded
from atoffer_rl.kernels.registry import ALL_RUNS
from atoffer_rl.records import RecordedTable, recorded_tables
from atoffer_rl.scheme import Choice
from atoffer_rl.signature import signature
from atoffer_rl.trial import Request, Status, Trial
from atoffer_rl.workload import Workload

HELD_OUT = Workload()
"""What the policy that ships is judged on: nothing of it is trained on."""


@dataclass(frozen=True)
class Spread:
    """Standard deviations of the logarithms of the factors.

    Attributes:
        run: Shared by all choices of a run.
        template: Shared by all choices of a template.
        pair: Shared by all choices of a template for one run.
        value: Shared by all choices of a template with one value of one parameter.
        pair_value: The same, for one run.
        choice: A choice's own.
        failing: Largest share of choices made to fail; a table's share is uniform from 0.
    """

    run: float = 0.2
    template: float = 0.25
    pair: float = 0.2
    value: float = 0.12
    pair_value: float = 0.06
    choice: float = 0.03
    failing: float = 0.1


class TrainingTable:
    """A complete table of one workload held in memory; a measurer of that workload alone."""

    name = "replay"

    def __init__(self, workload: Workload, device: DeviceSpec, trials: Mapping[Choice, Trial]) -> None:
        self.workload, self.device, self.trials = workload, device, dict(trials)

    def measure(self, requests: Sequence[Request]) -> list[Trial]:
        """The trial of each request.

        Raises:
            NotRecorded: If one is not there.
        """
        return [self._recorded(request) for request in requests]

    def _recorded(self, request: Request) -> Trial:
        trial = self.trials.get(request.choice) if request.choice is not None else None
        if trial is None:
            raise NotRecorded(f"{request.choice or 'a forward'} is not in the training table")
        return trial

    def known(self, request: Request) -> Trial | None:
        """Nothing is known in advance."""
        return None

    def close(self) -> None:
        """Nothing to release."""

    def perturbed(
        self, rng: np.random.Generator, spread: Spread, spared: frozenset[Choice], scale: float = 1.0
    ) -> "TrainingTable":
        """A new table of the same structure; choices of `spared` do not fail in it. `scale` 0 changes nothing."""
        factors = _Factors(rng, spread, scale)
        failing = scale * rng.uniform(0.0, spread.failing)
        trials = {
            choice: _scaled(trial, factors.of(choice), choice not in spared and rng.uniform() < failing)
            for choice, trial in self.trials.items()
        }
        return TrainingTable(self.workload, self.device, trials)


class _Factors:
    """Log-normal factors drawn once for each thing that choices share."""

    def __init__(self, rng: np.random.Generator, spread: Spread, scale: float) -> None:
        self._rng, self._spread, self._scale = rng, spread, scale
        self._drawn: dict[object, float] = {}

    def of(self, choice: Choice) -> float:
        run, template, s = choice.run, choice.template, self._spread
        total = self._draw(run, s.run) + self._draw(template, s.template) + self._draw((run, template), s.pair)
        for parameter in choice.parameters:
            total += self._draw((template, parameter), s.value) + self._draw((run, template, parameter), s.pair_value)
        return float(np.exp(self._scale * (total + self._draw(choice, s.choice))))

    def _draw(self, shared: object, deviation: float) -> float:
        if shared not in self._drawn:
            self._drawn[shared] = float(self._rng.normal(0.0, deviation))
        return self._drawn[shared]


def _scaled(trial: Trial, factor: float, fails: bool) -> Trial:
    if trial.latency_us is None:
        return trial
    if fails:
        return replace(trial, status=Status.LAUNCH_FAILED, latency_us=None, samples_us=())
    return replace(trial, latency_us=trial.latency_us * factor, samples_us=())


def share_signature(one: Workload, other: Workload) -> bool:
    """Whether some run of the two has the same signature, so that one's measurements answer the other's."""
    return any(signature(one, run) == signature(other, run) for run in ALL_RUNS)


def training_tables(tables: Iterable[RecordedTable] | None = None) -> tuple[TrainingTable, ...]:
    """The workloads of `tables` (all that ship if None) that share no signature with `HELD_OUT`."""
    return tuple(
        TrainingTable(workload, table.device, table.segments(workload))
        for table in (recorded_tables() if tables is None else tables)
        for workload in table.header.workloads
        if not share_signature(workload, HELD_OUT)
    )
