"""What is made of measured latencies."""

from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.table_summary import best_with

UNFUSED = Scheme(tuple(Choice(Run(place, place), "toy", (("p", 0),)) for place in range(15)))


def fused(first, last, value=1):
    return Choice(Run(first, last), "toy", (("p", value),))


def test_the_fallback_stands_in_where_nothing_was_measured():
    assert best_with({}, UNFUSED) == UNFUSED
    measured = {fused(2, 6): 9.0, fused(2, 6, 2): 8.0, fused(3, 4): 0.1}
    assert best_with(measured, UNFUSED).choices == (
        *UNFUSED.choices[:2],
        fused(2, 6, 2),
        *UNFUSED.choices[7:],
    )


def test_a_measured_fallback_competes():
    measured = dict.fromkeys(UNFUSED.choices, 1.0) | {fused(2, 6): 6.0, fused(8, 9): 1.5}
    assert best_with(measured, UNFUSED).choices == (*UNFUSED.choices[:8], fused(8, 9), *UNFUSED.choices[10:])
