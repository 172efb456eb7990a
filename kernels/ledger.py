"""A measurer under a budget: what one search has measured, what that cost, what is best so far."""

from collections.abc import Iterable
from math import inf, isinf

from atoffer_rl.errors import AtofferError, BudgetSpent, SchemeError, WorkloadError
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.measurers.protocol import Measurer
from atoffer_rl.quote import quote
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.shortest_path import CutGraph
from atoffer_rl.trial import SegmentRequest, Trial
from atoffer_rl.workload import Workload

MOST_UNITS = 2**53


class Ledger:
    """Measures choices of one workload under a budget and remembers every trial.

    The default choices of the `unfused` scheme are measured first, free of charge. A unit is one segment
    choice measured for the first time; what a live store already holds is free. Seconds are measuring
    seconds (compile, verify, time; the recorded ones in replay).

    Args:
        workload: What is searched.
        measurer: Who measures.
        units: Budget in units; None means no limit.
        seconds: Budget in measuring seconds; None or infinity means no limit.
        standalone: Whether only generated kernels may be measured.

    Attributes:
        space: What may be measured.

    Raises:
        AtofferError: If a budget is not a number from 0 on.
        WorkloadError: If the workload or the measurer is something else.
        SchemeError: If a default choice of the unfused scheme fails, so that there is no reference.
    """

    def __init__(
        self,
        workload: Workload,
        measurer: Measurer,
        units: int | None = None,
        seconds: float | None = None,
        standalone: bool = False,
    ) -> None:
        if units is not None and not (isinstance(units, int) and 0 <= units <= MOST_UNITS):
            raise AtofferError(f"units must be a whole number from 0 on, or None for no limit, not {quote(units)}")
        if not isinstance(workload, Workload):
            raise WorkloadError(f"a ledger is of a Workload, not of {quote(workload)}")
        if not all(hasattr(measurer, name) for name in ("device", "measure", "known")):
            raise WorkloadError(f"measurer must be what open_measurer gives, not {quote(measurer)}")
        self.workload = workload
        self.measurer = measurer
        self.space = LegalSpace(workload, measurer.device, standalone)
        self.units = units
        self.seconds = _limit(seconds)
        self.units_spent = 0
        self.seconds_spent = 0.0
        self.cache_hits = 0
        self.trials: dict[Choice, Trial] = {}
        self.graph = CutGraph()
        self._best_choice: dict[Run, Choice] = {}
        self.reserved = 0
        for trial in measurer.measure([SegmentRequest(workload, choice) for choice in self.space.unfused.choices]):
            if not trial.ok:
                raise SchemeError(f"the unfused scheme fails here, at {trial.choice}: {trial.reason}")
            self._record(trial)
        self.unfused_us = self.graph.best_us
        self._load_known()

    def _load_known(self) -> None:
        for choice in self.space.all_choices:
            trial = self.measurer.known(SegmentRequest(self.workload, choice))
            if trial is not None and choice not in self.trials:
                self._record(trial)

    @property
    def units_left(self) -> float:
        """Units not spent yet, reserved ones included; infinite without a limit."""
        return inf if self.units is None else self.units - self.units_spent

    @property
    def units_free(self) -> float:
        """Units neither spent nor reserved; infinite without a limit."""
        return self.units_left - self.reserved

    @property
    def seconds_left(self) -> float:
        """Measuring seconds that may still be spent; infinite without a limit."""
        return inf if self.seconds is None else self.seconds - self.seconds_spent

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        return self.units_left < 1 or self.seconds_left <= 0.0

    @property
    def complete(self) -> bool:
        """Whether every legal choice is known."""
        return len(self.trials) == len(self.space.all_choices)

    @property
    def exhausted(self) -> bool:
        """Whether nothing new can be measured: the budget is spent, or every choice is known."""
        return self.spent or self.complete

    def reserve(self) -> bool:
        """Set a unit aside for a choice that is being made; says whether one was free.

        Whoever reserves gives the unit back with `release`, or spends it with `measure_reserved`, which holds
        even when the measuring seconds run out in between.
        """
        if self.units_free < 1 or self.seconds_left <= 0.0:
            return False
        self.reserved += 1
        return True

    def release(self) -> None:
        """Give a reserved unit back."""
        self.reserved -= 1

    def measure_reserved(self, choice: Choice) -> Trial:
        """The trial of `choice` on a reserved unit, which is given back where the choice is known already."""
        self.release()
        if choice in self.trials:
            self.cache_hits += 1
            return self.trials[choice]
        return self._measure_new([choice])[0]

    def measure(self, choice: Choice) -> Trial:
        """The trial of `choice`: remembered if there is one, else measured and charged.

        Raises:
            BudgetSpent: If it would have to be measured and nothing is left.
        """
        return self.measure_all([choice])[0]

    def measure_all(self, choices: Iterable[Choice]) -> list[Trial]:
        """Trials of `choices` in order, the new ones measured together.

        Raises:
            BudgetSpent: If the new ones are more than what is left.
        """
        asked = list(choices)
        new = [choice for choice in dict.fromkeys(asked) if choice not in self.trials]
        if new and (len(new) > self.units_free or self.seconds_left <= 0.0):
            raise BudgetSpent(f"{len(new)} new choices asked for with {self.units_free:g} units free")
        self.cache_hits += len(asked) - len(new)
        self._measure_new(new)
        return [self.trials[choice] for choice in asked]

    def _measure_new(self, choices: list[Choice]) -> list[Trial]:
        trials = self.measurer.measure([SegmentRequest(self.workload, choice) for choice in choices])
        for trial in trials:
            self.units_spent += 1
            self.seconds_spent += trial.seconds
            self._record(trial)
        return trials

    def restore(self, choices: Iterable[Choice]) -> None:
        """Charge what an earlier part of this search measured, so that its budget goes on where it stood."""
        charged = list(choices)
        new = [choice for choice in charged if choice not in self.trials]
        for trial in self.measurer.measure([SegmentRequest(self.workload, choice) for choice in new]):
            self._record(trial)
        self.units_spent += len(charged)
        self.seconds_spent += sum(self.trials[choice].seconds for choice in charged)

    def best(self) -> tuple[Scheme, float]:
        """The shortest path over what was measured so far: the scheme to recommend, and its layer latency in us."""
        partition = self.graph.best_partition()
        return Scheme(tuple(self._best_choice[run] for run in partition)), self.graph.best_us

    def _record(self, trial: Trial) -> None:
        assert trial.choice is not None
        self.trials[trial.choice] = trial
        if trial.latency_us is not None and self.graph.lower(trial.choice.run, trial.latency_us):
            self._best_choice[trial.choice.run] = trial.choice


def _limit(seconds: float | None) -> float | None:
    """`seconds` as a limit; None where there is none, which an infinite number says, too."""
    if seconds is None:
        return None
    try:
        limit = float(seconds) if isinstance(seconds, int | float) else -1.0
    except OverflowError:
        limit = -1.0
    if not limit >= 0:
        what = "over 1.8e308" if isinstance(seconds, int) and seconds > 0 else quote(seconds)
        raise AtofferError(f"seconds must be a number from 0 on, or infinite for no limit, not {what}")
    return None if isinf(limit) else limit
