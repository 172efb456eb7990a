"""The oracle: the best scheme of a completely recorded workload, found exactly."""

from atoffer_rl.agents.session import Result, Session
from atoffer_rl.errors import NotRecorded
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.kernels.measurers.protocol import Measurer
from atoffer_rl.kernels.registry import legal_choices, legal_runs
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.workload import Workload


def search(session: Session) -> Result:
    """Measure everything, whatever the budget, and recommend the shortest path.

    Raises:
        NotRecorded: If measuring is live, or the recorded table is not complete.
    """
    if session.ledger.measurer.name != "replay":
        raise NotRecorded("the oracle needs a completely recorded workload: use --measurer replay")
    ledger = session.ledger
    ledger.units = ledger.seconds = None
    ledger.measure_all(all_choices(session.workload, ledger.measurer))
    session.oracle_us = ledger.graph.best_us
    return session.result("oracle")


def oracle(workload: Workload, measurer: Measurer) -> tuple[Scheme, float]:
    """The oracle's scheme and its layer latency in us.

    Raises:
        NotRecorded: If the table is not complete.
    """
    ledger = Ledger(workload, measurer)
    ledger.measure_all(all_choices(workload, measurer))
    return ledger.best()


def known_oracle_us(workload: Workload, measurer: Measurer) -> float | None:
    """The oracle's layer latency in us; None where measuring is live or the table is not complete."""
    if measurer.name != "replay":
        return None
    try:
        return oracle(workload, measurer)[1]
    except NotRecorded:
        return None


def all_choices(workload: Workload, measurer: Measurer) -> list[Choice]:
    """Every legal choice of `workload`."""
    return [
        choice
        for run in sorted(legal_runs(workload, measurer.device))
        for choice in legal_choices(workload, run, measurer.device)
    ]
