"""A recorded workload without a GPU, and searches on it."""

import pytest

from atoffer_rl.agents.hyperparameters import ppo_config
from atoffer_rl.agents.log import RunLog
from atoffer_rl.agents.oracle import oracle
from atoffer_rl.agents.session import Session
from atoffer_rl.agents.threads import single_thread
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.kernels.measurers.replay import ReplayMeasurer
from atoffer_rl.workload import Workload
from tests.synthetic import synthetic_table

WORKLOAD = Workload(batch=1, seq_len=128)
SMOKE = {"n_steps": 32, "batch_size": 32, "n_epochs": 2, "hidden": 16, "timesteps": 128}


@pytest.fixture(autouse=True)
def _one_thread():
    """Small networks learn fastest on one thread."""
    with single_thread():
        yield


@pytest.fixture(scope="session")
def table():
    return synthetic_table(WORKLOAD, 0)


@pytest.fixture(scope="session")
def measurer(table):
    return ReplayMeasurer(table)


@pytest.fixture(scope="session")
def oracle_us(measurer):
    return oracle(WORKLOAD, measurer)[1]


@pytest.fixture
def session_of(measurer, oracle_us):
    """Opens sessions on the recorded workload; their logs are closed at the end."""
    logs = []

    def make(units=20, seed=0, folder=None, **changes):
        logs.append(RunLog(folder))
        return Session(Ledger(WORKLOAD, measurer, units), logs[-1], seed, oracle_us, **changes)

    yield make
    for log in logs:
        log.close()


@pytest.fixture(scope="session")
def smoke():
    return ppo_config(SMOKE)
