"""Answers requests from a recorded table, in microseconds and without a GPU."""

from collections.abc import Sequence

from atoffer_rl.errors import NotRecorded
from atoffer_rl.records import RecordedTable, describe, list_workloads
from atoffer_rl.scheme import PLAIN, Choice, Scheme
from atoffer_rl.trial import ForwardRequest, Request, SegmentRequest, Trial
from atoffer_rl.workload import Workload


class ReplayMeasurer:
    """A recorded table as a measurer.

    It matches on signature, run, choice and execution option (a forward: workload, scheme and execution
    option) alone, and its trials carry the recorded compile, verify and measure seconds.

    Args:
        table: What was recorded; all answers come from this one table, so from one machine.
    """

    name = "replay"

    def __init__(self, table: RecordedTable) -> None:
        self.table = table
        self.device = table.device
        self._segments: dict[Workload, dict[Choice, Trial]] = {}
        self._forwards: dict[Workload, dict[Scheme, Trial]] = {}
        self._last: Workload | None = None
        self._answers: dict[Choice, Trial] = {}

    def measure(self, requests: Sequence[Request]) -> list[Trial]:
        """The recorded trial of each request, in order.

        Raises:
            NotRecorded: If one was never recorded.
        """
        return [self._recorded(request) for request in requests]

    def _recorded(self, request: Request) -> Trial:
        if isinstance(request, ForwardRequest):
            return self._forward(request)
        if request.workload is not self._last:
            self._answers = self._index(request.workload)
            self._last = request.workload
        trial = self._answers.get(request.choice)
        if trial is None or request.execution != trial.execution:
            raise NotRecorded(self._complaint(request))
        return trial

    def _index(self, workload: Workload) -> dict[Choice, Trial]:
        if workload not in self._segments:
            self._segments[workload] = self.table.segments(workload)
        return self._segments[workload]

    def _forward(self, request: ForwardRequest) -> Trial:
        if request.workload not in self._forwards:
            self._forwards[request.workload] = self.table.forwards(request.workload)
        trial = self._forwards[request.workload].get(request.scheme)
        if trial is None:
            raise NotRecorded(self._complaint(request))
        return trial

    def _complaint(self, request: Request) -> str:
        header = self.table.header
        what = f"choice {request.choice}" if isinstance(request, SegmentRequest) else f"forward {request.scheme.key}"
        option = "" if request.execution == PLAIN else f" ({request.execution})"
        asked = f"{what}{option} of {describe(request.workload)} is not in table {header.table}"
        # Where the workload is there, a list of workloads would say that it is not.
        held = "" if self.table.covers(request.workload) else f", which holds {list_workloads(header.workloads)}"
        return f"{asked}{held}; to measure it use --measurer cuda on a machine with a GPU"

    def known(self, request: Request) -> Trial | None:
        """None: a replayed search starts with an empty memory, as a live one on a new machine does."""
        return None

    def close(self) -> None:
        """Nothing to release."""
