"""Which recorded trials are of other sources: none of today's, one that was altered, no other workload's."""

from collections.abc import Iterable
from dataclasses import replace

from atoffer_rl.device import H100
from atoffer_rl.kernels.choice_program import template_program
from atoffer_rl.kernels.cubin_cache import program_hash
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.stale import Staleness, staleness
from atoffer_rl.records import RecordedTable, TableHeader
from atoffer_rl.scheme import Choice
from atoffer_rl.trial import Machine, SegmentRequest, Status, Trial
from atoffer_rl.workload import Workload

WORKLOAD = Workload(batch=2, seq_len=32, heads=2, head_dim=32, ffn_dim=128)
OTHER = replace(WORKLOAD, epsilon=1e-5)
"""Its signatures are the same; its layer normalizations are of another text."""


def source_hash(workload: Workload, choice: Choice) -> str:
    return program_hash(template_program(workload, choice))


def recorded(workload: Workload) -> tuple[Trial, ...]:
    return tuple(
        Trial(
            SegmentRequest(workload, choice).subject,
            choice,
            None,
            "plain",
            Status.OK,
            latency_us=5.0,
            source_hash=source_hash(workload, choice),
        )
        for choice in LegalSpace(workload, H100).all_choices
    )


def table(trials: Iterable[Trial], *workloads: Workload) -> RecordedTable:
    return RecordedTable(TableHeader("t", Machine(), H100, workloads, {}), tuple(trials))


def test_a_table_of_todays_sources_has_nothing_changed() -> None:
    assert staleness(table(recorded(WORKLOAD), WORKLOAD), WORKLOAD) == Staleness({}, 0)


def test_what_was_altered_or_left_out_is_found() -> None:
    altered, _, *others = recorded(WORKLOAD)
    assert altered.choice is not None
    trials = [replace(altered, source_hash="altered"), *others]
    assert staleness(table(trials, WORKLOAD), WORKLOAD) == Staleness({altered.choice.template: 1}, 1)


def test_sources_of_a_workload_that_shares_the_signature_are_not_stale() -> None:
    trials = recorded(OTHER)
    differ = [t.choice for t in trials if t.choice and t.source_hash != source_hash(WORKLOAD, t.choice)]
    assert {choice.template for choice in differ} == {"chain"}
    assert staleness(table(trials, WORKLOAD, OTHER), WORKLOAD) == Staleness({}, 0)
    assert staleness(table(trials, WORKLOAD), WORKLOAD) == Staleness({"chain": len(differ)}, 0)
