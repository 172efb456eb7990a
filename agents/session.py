"""What a searcher is given and what it gives back."""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, Protocol

from atoffer_rl.agents.log import RunLog
from atoffer_rl.agents.picture import draw_scheme, scheme_table
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.shortest_path import CutGraph
from atoffer_rl.trial import Status, Trial
from atoffer_rl.workload import Workload


@dataclass(frozen=True)
class Point:
    """The state of a search after one trial.

    Attributes:
        units: Units spent.
        seconds: Measuring seconds spent.
        best_us: Layer latency of the best known scheme.
    """

    units: int
    seconds: float
    best_us: float


@dataclass(frozen=True)
class Result:
    """What a search found.

    Attributes:
        searcher: Its name.
        scheme: The recommendation: the shortest path over what was measured.
        latency_us: The recommendation's layer latency.
        unfused_us: Layer latency of the unfused scheme on the same device.
        oracle_us: Layer latency of the oracle's scheme where it is known.
        units: Units spent.
        seconds: Measuring seconds spent.
        wall_seconds: Time the search took, measuring in replay not counted.
        rollout: The policy's own deterministic scheme, if there is a policy.
        rollout_us: Its layer latency.
        history: The best known latency after every trial.
        finished: False if it was interrupted.
    """

    searcher: str
    scheme: Scheme
    latency_us: float
    unfused_us: float
    oracle_us: float | None
    units: int
    seconds: float
    wall_seconds: float
    rollout: Scheme | None = None
    rollout_us: float | None = None
    history: tuple[Point, ...] = ()
    finished: bool = True

    @property
    def regret(self) -> float | None:
        """The recommendation's latency over the oracle's, minus 1."""
        return None if self.oracle_us is None else self.latency_us / self.oracle_us - 1.0

    @property
    def rollout_regret(self) -> float | None:
        """The rollout's latency over the oracle's, minus 1."""
        if self.oracle_us is None or self.rollout_us is None:
            return None
        return self.rollout_us / self.oracle_us - 1.0

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        return asdict(self) | {
            "scheme": self.scheme.to_json(),
            "rollout": self.rollout.to_json() if self.rollout else None,
            "regret": self.regret,
            "rollout_regret": self.rollout_regret,
            "history": [[point.units, point.seconds, point.best_us] for point in self.history],
        }


class Searcher(Protocol):
    """Anything that searches."""

    def __call__(self, session: "Session") -> Result:
        """Search until the session's budget is spent."""
        ...


@dataclass
class Session:
    """One search: its workload, its measurer under a budget, its log and its seed.

    Attributes:
        ledger: The legal space and the measurer under its budget.
        log: Where progress is written.
        seed: Seed of everything random.
        oracle_us: Layer latency of the oracle's scheme where it is known.
        on_progress: Called with the newest point after every `note`.
        interrupted: Whether the user asked to stop, should an interrupt have got lost.
        restored: Choices that an earlier part of this search paid for.
        units: Budget in units that it was given; the ledger's is less once some of it is forfeited.
    """

    ledger: Ledger
    log: RunLog = field(default_factory=RunLog)
    seed: int = 0
    oracle_us: float | None = None
    on_progress: Callable[[Point], None] | None = None
    interrupted: Callable[[], bool] = lambda: False
    restored: tuple[Choice, ...] = ()

    def __post_init__(self) -> None:
        self.started = time.monotonic()
        self.units = self.ledger.units
        self._graph = CutGraph()
        self._statuses = dict.fromkeys(Status, 0)
        self._known = len(self.ledger.trials)
        paid = {choice: self.ledger.trials[choice] for choice in self.restored}
        for choice, trial in self.ledger.trials.items():
            if choice not in paid:
                self._count(trial)
        self.history = [self._before(paid.values())]
        self.history += [point for _, point in self._counted(paid.values())]
        self._log_curves(self.history[-1])

    @property
    def workload(self) -> Workload:
        """What is searched."""
        return self.ledger.workload

    @property
    def charged(self) -> tuple[Choice, ...]:
        """Choices that this search paid for, in order."""
        return self.restored + tuple(islice(self.ledger.trials, self._known, None))

    @property
    def restored_records(self) -> list[dict[str, Any]]:
        """What is logged of the trials that an earlier part of this search paid for, in order."""
        return [_record(self.ledger.trials[choice], self.history[k]) for k, choice in enumerate(self.restored, 1)]

    def check_interrupt(self) -> None:
        """End the search if the user asked for it; searchers call it in every turn.

        Raises:
            KeyboardInterrupt: If so.
        """
        if self.interrupted():
            raise KeyboardInterrupt

    def note(self) -> None:
        """Log the trials measured since the last call; searchers call it whenever they have measured."""
        news = list(islice(self.ledger.trials.values(), sum(self._statuses.values()), None))
        best_us = self._graph.best_us
        for trial, point in self._counted(news):
            self.history.append(point)
            self.log.trial(_record(trial, point))
            self._log_curves(point)
        if news:
            self._log_point(self.history[-1])
        if self._graph.best_us < best_us:
            self._log_scheme(self.history[-1].units)

    def result(self, searcher: str, rollout: Scheme | None = None, finished: bool = True) -> Result:
        """The search's result as things stand, also written to the log."""
        self.note()
        scheme, latency_us = self.ledger.best()
        result = Result(
            searcher=searcher,
            scheme=scheme,
            latency_us=latency_us,
            unfused_us=self.ledger.unfused_us,
            oracle_us=self.oracle_us,
            units=self.ledger.units_spent,
            seconds=self.ledger.seconds_spent,
            wall_seconds=time.monotonic() - self.started,
            rollout=rollout,
            rollout_us=None if rollout is None else measured_us(self.ledger, rollout),
            history=tuple(self.history),
            finished=finished,
        )
        self.log.result(result.to_json() | {"workload": self.workload.to_json(), "seed": self.seed})
        return result

    def _count(self, trial: Trial) -> None:
        self._statuses[trial.status] += 1
        if trial.latency_us is not None and trial.run is not None:
            self._graph.lower(trial.run, trial.latency_us)

    def _before(self, trials: Collection[Trial]) -> Point:
        """Where this search stood before `trials`, the last that it paid for."""
        units, seconds = self.ledger.units_spent, self.ledger.seconds_spent
        return Point(units - len(trials), seconds - sum(trial.seconds for trial in trials), self._graph.best_us)

    def _counted(self, trials: Collection[Trial]) -> Iterator[tuple[Trial, Point]]:
        """Count `trials`, the last that this search paid for, and tell where it stood after each."""
        point = self._before(trials)
        for trial in trials:
            self._count(trial)
            point = Point(point.units + 1, point.seconds + trial.seconds, self._graph.best_us)
            yield trial, point

    def _log_curves(self, point: Point) -> None:
        self.log.scalar("search/best_latency_us", point.best_us, point.units)
        if self.oracle_us is not None:
            self.log.scalar("search/regret", point.best_us / self.oracle_us - 1.0, point.units)

    def _log_point(self, point: Point) -> None:
        self.log.scalar("search/units", point.units, point.units)
        self.log.scalar("search/seconds", point.seconds, point.units)
        self.log.scalar("search/cache_hits", self.ledger.cache_hits, point.units)
        for status, count in self._statuses.items():
            self.log.scalar(f"search/status/{status.value}", count, point.units)
        if self.on_progress is not None:
            self.on_progress(point)

    def _log_scheme(self, step: int) -> None:
        if self.log.folder is None:
            return
        scheme, _ = self.ledger.best()
        latencies_us = [self.ledger.graph.latencies_us[run] for run in scheme.runs]
        self.log.text("scheme/best", scheme_table(scheme, latencies_us), step)
        self.log.figure("scheme/best", draw_scheme(scheme, latencies_us), step)


def _record(trial: Trial, point: Point) -> dict[str, Any]:
    latency = {"choice": str(trial.choice), "status": trial.status.value, "latency_us": trial.latency_us}
    return asdict(point) | latency


def measured_us(ledger: Ledger, scheme: Scheme) -> float:
    """Layer latency of `scheme` from the ledger's trials; infinite if a segment failed or was not measured."""
    trials = [ledger.trials.get(choice) for choice in scheme.choices]
    latencies_us = [trial.latency_us for trial in trials if trial is not None and trial.latency_us is not None]
    return sum(latencies_us) if len(latencies_us) == len(trials) else float("inf")
