import numpy as np
import pytest

from atoffer_rl.agents.training_tables import HELD_OUT, Spread, TrainingTable, share_signature, training_tables
from atoffer_rl.errors import NotRecorded
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.registry import ALL_RUNS
from atoffer_rl.signature import signature
from atoffer_rl.trial import SegmentRequest
from atoffer_rl.workload import Workload
from tests.agents.conftest import WORKLOAD
from tests.synthetic import synthetic_table


@pytest.fixture
def training(table):
    return training_tables([table])[0]


def signatures(workload):
    return {signature(workload, run) for run in ALL_RUNS}


def test_the_default_workload_is_held_out():
    assert Workload() == HELD_OUT


def test_no_signature_of_the_default_workload_is_trained_on():
    """For the tables that ship: the policy that ships was trained on these and nothing else."""
    assert training_tables()
    for table in training_tables():
        assert signatures(table.workload).isdisjoint(signatures(Workload()))
        subjects = {trial.subject for trial in table.trials.values()}
        assert subjects.isdisjoint(signatures(Workload()))


def test_what_shares_rows_with_the_default_workload_is_left_out():
    others = (Workload(mask="fixed"), Workload(batch=32, seq_len=128), Workload(layers=3))
    assert all(share_signature(other, Workload()) for other in others)
    assert not share_signature(WORKLOAD, Workload())
    table = synthetic_table(WORKLOAD, 0, others=others[:1])
    assert [found.workload for found in training_tables([table])] == [WORKLOAD]


def test_recorded_tables_leave_something_to_train_on():
    assert len(training_tables()) >= 2


def test_unperturbed_it_answers_as_recorded(training, table):
    recorded = table.segments(WORKLOAD)
    same = training.perturbed(np.random.default_rng(0), Spread(), frozenset(), scale=0.0)
    for choice, trial in recorded.items():
        answer = same.measure([SegmentRequest(WORKLOAD, choice)])[0]
        assert answer.status is trial.status
        assert answer.latency_us == (None if trial.latency_us is None else pytest.approx(trial.latency_us))
    with pytest.raises(NotRecorded):
        TrainingTable(WORKLOAD, table.device, {}).measure([SegmentRequest(WORKLOAD, next(iter(recorded)))])


def test_perturbations_are_shared_within_the_structure(training):
    quiet = Spread(run=0, template=0.5, pair=0, value=0, pair_value=0, choice=0, failing=0)
    perturbed = training.perturbed(np.random.default_rng(1), quiet, frozenset())
    ratios = {}
    for choice, trial in training.trials.items():
        if trial.ok:
            ratios.setdefault(choice.template, set()).add(
                round(perturbed.trials[choice].latency_us / trial.latency_us, 6)
            )
    assert all(len(values) == 1 for values in ratios.values())
    assert len({next(iter(values)) for values in ratios.values()}) == len(ratios)


def test_perturbations_are_seeded_and_spare_the_unfused_scheme(training):
    spared = frozenset(LegalSpace(WORKLOAD).unfused.choices)
    failing = Spread(failing=0.9)
    one, same, other = (training.perturbed(np.random.default_rng(seed), failing, spared) for seed in (4, 4, 5))
    assert one.trials == same.trials
    assert one.trials != other.trials
    assert all(one.trials[choice].ok for choice in spared)
    assert sum(not trial.ok for trial in one.trials.values()) > sum(not t.ok for t in training.trials.values())
