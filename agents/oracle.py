"""The oracle: the best scheme of a completely recorded workload, found exactly."""

from atoffer_rl.agents.session import Result, Session
from atoffer_rl.errors import NotRecorded
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.kernels.measurers.protocol import Measurer
from atoffer_rl.scheme import Scheme
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
    ledger.measure_all(ledger.space.all_choices)
    session.oracle_us = ledger.graph.best_us
    return session.result("oracle")


def oracle(workload: Workload, measurer: Measurer, standalone: bool = False) -> tuple[Scheme, float]:
    """The oracle's scheme, of generated kernels alone if `standalone`, and its layer latency in us.

    Raises:
        NotRecorded: If the table is not complete.
    """
    ledger = Ledger(workload, measurer, standalone=standalone)
    ledger.measure_all(ledger.space.all_choices)
    return ledger.best()


def known_oracle_us(workload: Workload, measurer: Measurer, standalone: bool = False) -> float | None:
    """The oracle's layer latency in us; None where measuring is live or the table is not complete."""
    if measurer.name != "replay":
        return None
    try:
        return oracle(workload, measurer, standalone)[1]
    except NotRecorded:
        return None
