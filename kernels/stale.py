"""Which recorded trials are of sources that have changed since."""

from collections import Counter
from dataclasses import dataclass

from atoffer_rl.kernels.choice_program import template_program
from atoffer_rl.kernels.cubin_cache import program_hash
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.records import RecordedTable
from atoffer_rl.trial import SegmentRequest, request_key
from atoffer_rl.workload import Workload


@dataclass(frozen=True)
class Staleness:
    """What has changed since a workload was recorded.

    Attributes:
        changed: Recorded trials of other sources than today's, by template.
        missing: Choices that are legal now and not recorded.
    """

    changed: dict[str, int]
    missing: int


def staleness(table: RecordedTable, workload: Workload) -> Staleness:
    """What has changed since `table` was recorded, for `workload`.

    A signature that several workloads share was recorded with the sources of one of them: its hash may stand for
    another shape's source, so a trial counts as changed only if no workload of the table renders to its hash.
    """
    recorded = table.segments(workload)
    current = LegalSpace(workload, table.device).all_choices
    changed = Counter(
        choice.template
        for choice in current
        if choice in recorded and recorded[choice].source_hash not in _hashes(table, SegmentRequest(workload, choice))
    )
    return Staleness(dict(sorted(changed.items())), sum(choice not in recorded for choice in current))


def _hashes(table: RecordedTable, request: SegmentRequest) -> set[str]:
    """Hashes of the choice's program under each workload of the table that shares the signature."""
    key = request_key(request)
    sharing = [
        workload for workload in table.header.workloads if request_key(SegmentRequest(workload, request.choice)) == key
    ]
    return {program_hash(template_program(workload, request.choice)) for workload in sharing}
