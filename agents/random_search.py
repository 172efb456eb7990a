"""Random search: uniform legal choices, recommended by shortest path."""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from atoffer_rl.agents.session import Result, Session
from atoffer_rl.scheme import Choice

BATCH = 16


def search(session: Session) -> Result:
    """Measure legal choices in a uniformly random order until the budget is spent."""
    ledger, order = session.ledger, shuffled_choices(session)
    size = BATCH if ledger.seconds is None else 1  # what a choice takes, nobody knows before
    while not ledger.spent:
        session.check_interrupt()
        batch = list(islice(order, int(min(size, ledger.units_left))))
        if not batch:
            break
        ledger.measure_all(batch)
        session.note()
    return session.result("random")


def shuffled_choices(session: Session) -> Iterator[Choice]:
    """Every legal choice that was not measured yet, in random order."""
    ledger = session.ledger
    unmeasured = [choice for choice in ledger.space.all_choices if choice not in ledger.trials]
    for k in np.random.default_rng(session.seed).permutation(len(unmeasured)):
        yield unmeasured[k]
