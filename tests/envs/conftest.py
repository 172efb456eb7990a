"""A recorded workload to build schemes for, and ways to walk through its environment."""

import pytest

from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.kernels.measurers.replay import ReplayMeasurer
from atoffer_rl.workload import Workload
from tests.synthetic import synthetic_table

WORKLOAD = Workload(batch=8, seq_len=128)
OTHER = Workload(batch=1, seq_len=128, mask="fixed")


@pytest.fixture(scope="session")
def measurer():
    return ReplayMeasurer(synthetic_table(WORKLOAD, seed=3, others=(OTHER,)))


@pytest.fixture
def open_ledger(measurer):
    def open_one(units=None, workload=WORKLOAD, seconds=None):
        return Ledger(workload, measurer, units, seconds)

    return open_one
