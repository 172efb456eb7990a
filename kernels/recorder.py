"""Measures a table phase by phase: every choice, the best ones again, whole forwards, the finalists again."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from statistics import median
from typing import TypeAlias

import numpy as np

from atoffer_rl.kernels.anchors import DRIFT, drift
from atoffer_rl.kernels.forward_schemes import forward_schemes
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.measurers.batch import MOST_TAKES, never
from atoffer_rl.kernels.measurers.cuda import CudaMeasurer
from atoffer_rl.kernels.space import load_space
from atoffer_rl.kernels.timing import MIN_REPLAYS
from atoffer_rl.records import RecordedTable, TableHeader
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.table_summary import FINALISTS, latencies
from atoffer_rl.trial import ANCHORS_DISAGREED, Answers, ForwardRequest, Request, SegmentRequest, Trial, request_key
from atoffer_rl.workload import Workload

BEST_CHOICES = 3
BEST_REPLAYS = 100
BEST_ROUNDS = 4
DOUBTFUL = 1.3
"""How much longer than on a run that contains it a choice takes that is measured again."""
FORWARD_REPLAYS = 20
FINALIST_ROUNDS = 5
Tell: TypeAlias = Callable[[str], None]
OnProgress: TypeAlias = Callable[[str, int, int], None]


class Recorder:
    """One attempt at a table: begins or resumes it, and measures what it lacks until the machine changes.

    Args:
        measurer: The GPU; its store keeps what was measured between attempts.
        workloads: What to record; a signature that several share is measured once.
        deadline: When to stop, by `time.monotonic`.
        tell: Called with lines for the user.
        progress: Called with a phase, what is done of it, and its total.

    Attributes:
        measured: Trials taken by this attempt.
    """

    def __init__(
        self, measurer: CudaMeasurer, workloads: tuple[Workload, ...], deadline: float, tell: Tell, progress: OnProgress
    ) -> None:
        self._measurer = measurer
        self._workloads = workloads
        self._deadline = deadline
        self._tell = tell
        self._progress = progress
        self._phase = ("", 0)
        self._done_before = 0
        self._noted: set[Answers] = set()
        self._earlier_rounds: dict[Answers, Trial] = {}
        self.measured = 0
        self._header, self._earlier_anchors = self._resume()
        self._first_sample = len(measurer.watch.samples) - 1
        table = self._header.table
        measurer.store.save_table(table, self._header.to_json())
        self._trials: dict[Answers, Trial] = {}
        for trial in measurer.store.trials():
            if trial.table == table:
                self._answer_with(trial)
        measurer.table = table
        measurer.on_trial = self._note
        measurer.should_stop = self._should_stop
        self._changes = measurer.watch.changes

    def measure(self, forwards: int) -> bool:
        """Every phase in turn, with that many forwards of each workload; says whether all was measured, and lasts."""
        try:
            return (
                self._measure_segments()
                and self._measure_best()
                and self._measure_forwards(forwards)
                and self._measure_finalists(forwards)
                and not self._owes(forwards)
            )
        finally:
            self._close()

    def _resume(self) -> tuple[TableHeader, int]:
        """The header to go on with, and how many anchors it already had."""
        measurer = self._measurer
        measurer.watch.reference = None
        now = measurer.time_anchors()
        header = self._earlier()
        if header is not None and header.anchors:
            apart = drift(header.anchors[0].latencies_us, now.latencies_us)
            if apart <= DRIFT:
                self._tell(f"going on with table {header.table}: the anchors agree within {apart:.1%}")
                measurer.watch.reference = header.anchors[0]
                return header, len(header.anchors)
            self._tell(f"a new table is begun: the anchors are {apart:.1%} from those of table {header.table}")
        templates = {choice.template for workload in self._workloads for choice in self._choices(workload)}
        spaces = {template: load_space(template).version for template in sorted(templates)}
        table = f"{measurer.machine.uuid[-12:] or 'gpu'}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        return TableHeader(table, measurer.machine, measurer.device, self._workloads, spaces, (now,)), 0

    def _earlier(self) -> TableHeader | None:
        """The last table that was begun on this machine for these workloads."""
        asked = [workload.to_json() for workload in self._workloads]
        # Others' headers are not read: a mask of theirs may not be had here.
        values = [value for value in self._measurer.store.tables().values() if value.get("workloads") == asked]
        mine = [h for h in map(TableHeader.from_json, values) if h.machine == self._measurer.machine]
        return mine[-1] if mine else None

    def _note(self, trial: Trial) -> None:
        self._answer_with(self._pooled(trial))
        self.measured += ANCHORS_DISAGREED not in trial.detail  # else it was counted when it was taken
        self._noted.add(trial.answers)
        self._progress(self._phase[0], self._done, self._phase[1])

    def _answer_with(self, trial: Trial) -> None:
        earlier = self._trials.get(trial.answers)
        if earlier is None or replaces(trial, earlier):
            self._trials[trial.answers] = trial

    def _pooled(self, trial: Trial) -> Trial:
        """A finalist's trial joined with its earlier rounds, and kept: what interrupts a round costs no samples."""
        earlier = self._earlier_rounds.get(trial.answers)
        if earlier is None or not trial.ok:
            return trial
        samples = earlier.samples_us + trial.samples_us
        pooled = replace(trial, samples_us=samples, latency_us=float(median(samples)))
        self._measurer.store.add(pooled)
        return pooled

    def _lacks(self, request: Request) -> bool:
        """Whether `request` is to be measured: it never was, or something that passes was in the way.

        That anchors disagreed passes, too, until a trial has been taken often enough.
        """
        trial = self._trials.get(request_key(request))
        return trial is None or trial.transient or trial.detail.get(ANCHORS_DISAGREED, MOST_TAKES) < MOST_TAKES

    def _owes(self, forwards: int) -> bool:
        """Whether a call after this one would measure something again."""
        groups = self._forward_requests(forwards)
        requests: list[Request] = [*self._segment_requests(), *chain.from_iterable(groups)]
        return any(self._lacks(request) for request in requests)

    @property
    def _done(self) -> int:
        """What is done of the phase, before this call and in it; what is taken again counts once."""
        return self._done_before + len(self._noted)

    @property
    def machine_changed(self) -> bool:
        """Whether the machine is no longer the one that the table was begun on."""
        return self._measurer.watch.changes > self._changes

    def _should_stop(self) -> bool:
        return time.monotonic() >= self._deadline or self.machine_changed

    def _measure(self, phase: str, requests: Sequence[Request], done: int, replays: int) -> bool:
        """Measure `requests`, of which `done` more were measured before; says whether all were."""
        self._phase, self._done_before, self._noted = (phase, done + len(requests)), done, set()
        self._progress(phase, done, done + len(requests))
        self._measurer.measure_again(requests, replays)
        if self.machine_changed:
            anchors = ", ".join(str(sample.latencies_us) for sample in self._measurer.watch.samples[-4:])
            self._tell(f"the machine changed by more than {DRIFT:.0%} for good; its last anchors in us: {anchors}")
            return False
        return not self._should_stop() or self._done >= self._phase[1]

    def _segment_requests(self) -> list[SegmentRequest]:
        """Every legal choice of every workload, those of shared signatures once, workload by workload."""
        found: dict[Answers, SegmentRequest] = {}
        for workload in self._workloads:
            for choice in self._choices(workload):
                request = SegmentRequest(workload, choice)
                found.setdefault(request_key(request), request)
        return list(found.values())

    def _measure_segments(self) -> bool:
        """Every choice that the table lacks; says whether it is complete now."""
        requests = self._segment_requests()
        missing = [request for request in requests if self._lacks(request)]
        return self._measure("segments", missing, len(requests) - len(missing), replays=MIN_REPLAYS)

    def _measure_best(self) -> bool:
        """The best few choices of each run, and doubtful ones, with more samples: a round may make others best."""
        for turn in range(BEST_ROUNDS):
            asked = dict.fromkeys((*self._best_requests(), *self._doubtful_requests()))
            requests = [request for request in asked if not self._has_many_samples(request)]
            if requests and not self._measure(f"best choices, round {turn + 1}", requests, 0, BEST_REPLAYS):
                return False
        return True

    def _has_many_samples(self, request: SegmentRequest) -> bool:
        trial = self._trials[request_key(request)]
        return not trial.ok or len(trial.samples_us) >= BEST_REPLAYS

    def _best_requests(self) -> Iterator[SegmentRequest]:
        ranked: dict[tuple[str, Run], list[tuple[float, SegmentRequest]]] = {}
        for request in self._segment_requests():
            trial = self._trials[request_key(request)]
            if trial.latency_us is not None:
                ranked.setdefault((trial.subject, request.choice.run), []).append((trial.latency_us, request))
        for group in ranked.values():
            yield from (request for _, request in sorted(group, key=lambda pair: pair[0])[:BEST_CHOICES])

    def _doubtful_requests(self) -> Iterator[SegmentRequest]:
        doubted = {
            request_key(SegmentRequest(workload, choice))
            for workload, by_choice in self._latencies_us()
            for choice in doubtful(by_choice)
        }
        yield from (request for request in self._segment_requests() if request_key(request) in doubted)

    def _latencies_us(self) -> Iterator[tuple[Workload, dict[Choice, float]]]:
        """Of each workload's choices that ran."""
        table = RecordedTable(self._header, tuple(self._trials.values()))
        yield from ((workload, latencies(table.segments(workload))) for workload in self._workloads)

    def _measure_forwards(self, count: int) -> bool:
        """Whole forwards of each workload; says whether all are there now."""
        requests = [request for group in self._forward_requests(count) for request in group]
        missing = [request for request in requests if self._lacks(request)]
        return self._measure("forwards", missing, len(requests) - len(missing), FORWARD_REPLAYS)

    def _measure_finalists(self, count: int) -> bool:
        """The forwards of the least sums in further rounds, each in another order; a trial pools its rounds.

        One round cannot rank them: where buffers happen to lie, and when, moves a forward by more than they differ.
        """
        groups = [group[:FINALISTS] for group in self._forward_requests(count)]
        for turn in range(1, FINALIST_ROUNDS):
            # Workload by workload: each change of workload costs a reference of its own.
            orders = [np.random.default_rng(turn).permutation(len(group)) for group in groups]
            ordered = [group[index] for group, order in zip(groups, orders, strict=True) for index in order]
            asked = [request for request in ordered if self._lacks_round(request, turn)]
            self._earlier_rounds = {key: self._trials[key] for key in map(request_key, asked)}
            if asked and not self._measure(f"finalists, round {turn + 1}", asked, 0, FORWARD_REPLAYS):
                return False
        return True

    def _lacks_round(self, request: ForwardRequest, turn: int) -> bool:
        trial = self._trials[request_key(request)]
        return trial.ok and len(trial.samples_us) < FORWARD_REPLAYS * (turn + 1)

    def _forward_requests(self, count: int) -> list[list[ForwardRequest]]:
        """The forwards to time, workload by workload, the least sums first."""
        groups = []
        for workload, by_choice in self._latencies_us():
            schemes = forward_schemes(by_choice, count, seed=int(workload.key, 16) % 2**32)
            groups.append([ForwardRequest(workload, scheme) for scheme in schemes])
        return groups

    def _close(self) -> None:
        """Keep the header with all its anchors, and leave the measurer as it was."""
        new = self._measurer.watch.samples[self._first_sample :]
        earlier = self._header.anchors[: self._earlier_anchors]
        self._header = replace(self._header, anchors=(*earlier, *new))
        self._measurer.store.save_table(self._header.table, self._header.to_json())
        self._measurer.table = ""
        self._measurer.on_trial = None
        self._measurer.should_stop = never

    def table(self) -> RecordedTable | None:
        """The table of the workloads whose segments are complete."""
        complete = [workload for workload in self._workloads if self._is_complete(workload)]
        if not complete:
            return None
        header = replace(self._header, workloads=tuple(complete))
        subjects = {f"workload={workload.key}" for workload in complete}
        for workload in complete:
            subjects |= {SegmentRequest(workload, choice).subject for choice in self._choices(workload)}
        return RecordedTable(header, tuple(t for t in self._trials.values() if t.subject in subjects))

    def _choices(self, workload: Workload) -> tuple[Choice, ...]:
        return LegalSpace(workload, self._measurer.device).all_choices

    def _is_complete(self, workload: Workload) -> bool:
        requests = (SegmentRequest(workload, choice) for choice in self._choices(workload))
        return all(request_key(request) in self._trials for request in requests)


def replaces(trial: Trial, earlier: Trial) -> bool:
    """Whether `trial`, the newer of two of one table, answers in place of `earlier`.

    A transient failure replaces no answer. A latency of fewer samples replaces none of more: it is the round of a
    finalist that was cut short before it was joined with the rounds before. Any replaces what was taken while anchors
    disagreed.
    """
    if trial.transient:
        return earlier.transient
    fewer = trial.ok and earlier.ok and len(trial.samples_us) < len(earlier.samples_us)
    return not fewer or ANCHORS_DISAGREED in earlier.detail


def doubtful(latencies_us: Mapping[Choice, float]) -> list[Choice]:
    """Choices that took much longer than the same parameters did on a run that contains theirs.

    Some must: fused, a run need not store what lies between. Of others the timing was disturbed for as long as it took.
    """
    alike: dict[tuple[str, object], list[Choice]] = {}
    for choice in latencies_us:
        alike.setdefault((choice.template, choice.parameters), []).append(choice)
    return [
        choice
        for group in alike.values()
        for choice in group
        if any(
            other.run.first <= choice.run.first <= choice.run.last <= other.run.last
            and latencies_us[choice] > DOUBTFUL * latencies_us[other]
            for other in group
        )
    ]
