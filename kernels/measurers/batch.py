"""Requests measured together: compiled ahead, timed one by one, between timings of the anchors."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import TypeAlias

from atoffer_rl.errors import DeviceUnavailable
from atoffer_rl.kernels.anchors import AnchorWatch
from atoffer_rl.kernels.child import Child, End, Outcome
from atoffer_rl.kernels.preparation import Item, Preparation, rendering_failure
from atoffer_rl.kernels.tasks import AnchorTask, ForwardTask, Measured, SegmentTask
from atoffer_rl.trial import ANCHORS_DISAGREED, TRANSIENT, Request, SegmentRequest, Status, Trial

ANCHOR_EVERY = 48
ANCHOR_LIMIT_SECONDS = 30.0
FORWARD_LIMIT_FACTOR = 4
CHANGED_AFTER = 3
"""Anchors that disagree one after the other mean that the machine has changed for good."""
MOST_TAKES = 3
"""So often a trial is taken between anchors that disagree; the last one says so in its detail."""
FAILURES = 3
STATUS_OF = {End.LATE: Status.TIMEOUT, End.CRASHED: Status.CRASHED, End.RAISED: Status.LAUNCH_FAILED}
Keep: TypeAlias = Callable[[Item, Measured], Trial]
ShouldStop: TypeAlias = Callable[[], bool]


def never() -> bool:
    """Measure to the end."""
    return False


class Batch:
    """One call of `CudaMeasurer.measure`.

    Args:
        preparation: Where requests become machine code.
        worker: The process that owns the GPU.
        watch: The anchors so far.
        anchor_task: How to time them.
        neighbour: Machine code of the kernel that timed launches follow.
        limit_seconds: Time limit of one segment's trial; forwards have more.
        keep: Makes a trial of what was measured, and stores it.
        should_stop: Whether to drop all but what the worker is doing.
    """

    def __init__(
        self,
        preparation: Preparation,
        worker: Child,
        watch: AnchorWatch,
        anchor_task: AnchorTask,
        neighbour: bytes,
        limit_seconds: float,
        keep: Keep,
        should_stop: ShouldStop = never,
    ) -> None:
        self._preparation = preparation
        self._worker = worker
        self._watch = watch
        self._anchor_task = anchor_task
        self._neighbour = neighbour
        self._limit_seconds = limit_seconds
        self._keep = keep
        self._should_stop = should_stop
        self._todo: list[tuple[int, Request, int]] = []
        self._trials: dict[int, Trial] = {}
        self._current: Item | None = None
        self._since: list[tuple[Item, Measured]] = []
        self._takes: Counter[int] = Counter()
        self._doubtful: dict[int, Measured] = {}
        self._asked = 0
        self._stopped = False
        self._disagreements = 0
        self._failures = 0

    def run(self, requests: Sequence[tuple[Request, int]]) -> list[Trial]:
        """The trial of each request, which comes with the replays to time; fewer if it was told to stop.

        Raises:
            DeviceUnavailable: If no process can be started, or the worker cannot time its anchors.
        """
        self._todo = [(index, request, replays) for index, (request, replays) in enumerate(requests)][::-1]
        self._asked = len(requests)
        while len(self._trials) < self._asked or self._since or self._preparation.ready or self._worker.busy:
            if not self._stopped and self._should_stop():
                self._stop()
            self._feed()
            self._dispatch()
            self._wait()
            self._collect()
        return [self._trials[index] for index in sorted(self._trials)]

    def _stop(self) -> None:
        """Drop what the worker has not begun: after a change of the machine it would belong to another table."""
        self._stopped = True
        self._todo.clear()
        for item in self._preparation.ready:
            if item.index in self._doubtful:
                self._doubt(item, self._doubtful.pop(item.index))
        self._preparation.abandon()
        under_way = int(self._worker.busy and self._current is not None and self._current.index not in self._trials)
        self._asked = len(self._trials) + under_way

    def time_anchors(self) -> None:
        """Time the anchors, and nothing else.

        Raises:
            DeviceUnavailable: If that fails.
        """
        done = len(self._watch.samples)
        while len(self._watch.samples) == done:
            self._start_anchors()
            while self._worker.busy:
                self._wait()
                self._collect()

    def _feed(self) -> None:
        """Begin items until compilers and GPU have enough to do."""
        while self._todo and self._preparation.has_room:
            index, request, replays = self._todo.pop()
            try:
                item = self._preparation.render(index, request, replays)
            except Exception as error:  # noqa: BLE001  a template's defect on one choice is that choice's failure
                failed = Item(index, request, (), "", replays)
                self._finish(failed, Measured(Status.COMPILE_FAILED, rendering_failure(error)))
            else:
                self._preparation.begin(item)

    def _dispatch(self) -> None:
        """Give the worker its next task."""
        if self._worker.busy:
            return
        if self._anchors_due():
            self._start_anchors()
        elif self._preparation.ready:
            item = self._current = self._preparation.ready.popleft()
            if isinstance(item.request, SegmentRequest):
                task = SegmentTask(item.request, item.machine_code[0], self._neighbour, item.replays)
                self._worker.submit(task, self._limit_seconds)
            else:
                forward = ForwardTask(item.request, item.machine_code, item.replays)
                self._worker.submit(forward, FORWARD_LIMIT_FACTOR * self._limit_seconds)

    def _anchors_due(self) -> bool:
        if self._preparation.ready:
            return self._watch.is_old or self._disagreements > 0 or len(self._since) >= ANCHOR_EVERY
        return bool(self._since) and not self._todo and not self._preparation.waitables

    def _start_anchors(self) -> None:
        self._current = None
        self._worker.submit(self._anchor_task, ANCHOR_LIMIT_SECONDS)

    def _wait(self) -> None:
        waitables = self._worker.waitables + self._preparation.waitables
        if waitables:
            limit = min(self._worker.seconds_left, self._preparation.seconds_left)
            wait(waitables, limit)

    def _collect(self) -> None:
        self._preparation.collect()
        while self._preparation.failed:
            item, compiled = self._preparation.failed.popleft()
            if item.index not in self._trials:
                detail = {} if compiled.answered else {TRANSIENT: True}
                self._finish(item, Measured(Status.COMPILE_FAILED, compiled.reason, detail=detail))
        outcome = self._worker.outcome()
        if outcome is None:
            return
        if outcome.end is End.ANSWERED and outcome.value.broken:
            self._worker.kill()
        if self._current is None:
            self._end_anchors(outcome)
        else:
            self._end_item(self._current, outcome)

    def _end_item(self, item: Item, outcome: Outcome) -> None:
        if outcome.end is End.UNSTARTED:
            self._count_failure(outcome.reason)
            self._preparation.ready.appendleft(item)
            return
        self._failures = 0
        measured = outcome.value
        if outcome.end is not End.ANSWERED:
            measured = Measured(STATUS_OF[outcome.end], outcome.reason)
        self._finish(item, measured)
        self._doubtful.pop(item.index, None)
        self._takes[item.index] += 1
        if measured.status is Status.OK:
            self._since.append((item, measured))

    def _finish(self, item: Item, measured: Measured) -> None:
        self._trials[item.index] = self._keep(item, measured)

    def _end_anchors(self, outcome: Outcome) -> None:
        if outcome.end is not End.ANSWERED or outcome.value.status is not Status.OK:
            self._worker.kill()
            self._count_failure(outcome.reason or outcome.value.reason)
            return
        self._failures = 0
        if self._watch.add(outcome.value.anchors_us, outcome.value.detail):
            self._disagreements = 0
        elif self._disagreements + 1 < CHANGED_AFTER:
            self._disagreements += 1
            self._take_again()
        else:
            self._disagreements = 0
            self._watch.adopt()
        self._since.clear()

    def _take_again(self) -> None:
        """What was measured since the last anchors; clocks that follow the load would have it go on for ever."""
        for item, measured in reversed(self._since):
            if self._takes[item.index] < MOST_TAKES and not self._stopped:
                self._doubtful[item.index] = measured
                self._preparation.ready.appendleft(item)
            else:
                self._doubt(item, measured)

    def _doubt(self, item: Item, measured: Measured) -> None:
        """Note in its trial that the item was taken while anchors disagreed."""
        self._finish(item, replace(measured, detail={**measured.detail, ANCHORS_DISAGREED: self._takes[item.index]}))

    def _count_failure(self, reason: str) -> None:
        self._failures += 1
        if self._failures >= FAILURES:
            raise DeviceUnavailable(f"the GPU was lost: {reason}; everything measured so far is kept")
