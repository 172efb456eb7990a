import pytest
import torch

from atoffer_rl.agents.evaluation import evaluate
from atoffer_rl.agents.hyperparameters import pretrain_config
from atoffer_rl.agents.log import RunLog
from atoffer_rl.agents.pretraining import perturbed_searches, pretrain
from atoffer_rl.agents.training_tables import training_tables

TINY = {
    "tables": 3,
    "imitation_rounds": 2,
    "imitation_steps": 300,
    "imitation_epochs": 2,
    "timesteps": 64,
    "n_envs": 2,
    "n_steps": 32,
    "batch_size": 32,
    "n_epochs": 1,
    "smallest_budget": 4,
    "largest_budget": 12,
    "hidden": 16,
}


@pytest.fixture(scope="module")
def tables(table):
    return training_tables([table])


@pytest.fixture(scope="module")
def policy(tables):
    return pretrain(tables, pretrain_config(TINY), 0, RunLog())


def test_the_same_seed_gives_the_same_policy(tables, policy):
    again = pretrain(tables, pretrain_config(TINY), 0, RunLog())
    for name, value in policy.weights.items():
        torch.testing.assert_close(value, again.weights[name], rtol=0, atol=0)


def test_searches_know_their_oracle(tables):
    import numpy as np

    plain, *perturbed = perturbed_searches(tables, 3, np.random.default_rng(0))
    ledger = plain.open(5)
    assert ledger.units == 5
    assert plain.oracle_us < ledger.unfused_us
    assert len({search.oracle_us for search in [plain, *perturbed]}) == 3


def test_a_policy_proposes_searches_and_settles(policy, session_of):
    proposed = evaluate(policy, session_of(units=0))
    assert proposed.units <= 15
    found = evaluate(policy, session_of(units=12))
    assert found.units == 12
    assert found.rollout_us >= found.latency_us
    again = evaluate(policy, session_of(units=12))
    assert again.history == found.history
