"""The shortest path over cut positions against trying every partition."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from atoffer_rl.run import Run
from atoffer_rl.shortest_path import CutGraph
from tests.partitions import partitions

SINGLES = [Run(operator, operator) for operator in range(15)]
runs = st.tuples(st.integers(0, 14), st.integers(0, 5)).map(lambda ends: Run(ends[0], min(14, sum(ends))))
measured = st.lists(st.tuples(runs, st.floats(0.5, 100)), max_size=25)


def through_us(graph, run, latency_us):
    """Latency of the best partition that contains `run` at `latency_us`."""
    return graph.prefix_us[run.first] + latency_us + graph.suffix_us[run.last + 1]


def brute_force(latencies_us):
    sums = [sum(latencies_us[run] for run in cut) for cut in partitions(frozenset(latencies_us))]
    return min(sums, default=inf)


@given(measured, st.lists(st.floats(0.5, 20), min_size=15, max_size=15))
def test_it_is_the_best_partition(found, singles):
    graph = CutGraph(dict(zip(SINGLES, singles, strict=True)))
    for run, latency_us in found:
        known = graph.latencies_us.get(run, inf)
        assert graph.lower(run, latency_us) == (latency_us < known)
        assert graph.latencies_us[run] == min(known, latency_us)
    best = brute_force(graph.latencies_us)
    assert abs(graph.best_us - best) < 1e-9 * best
    taken = graph.best_partition()
    assert abs(sum(graph.latencies_us[run] for run in taken) - best) < 1e-9 * best
    assert taken in set(partitions(frozenset(graph.latencies_us)))


@given(measured, runs, st.floats(0.5, 100))
def test_the_best_partition_through_a_run(found, run, latency_us):
    graph = CutGraph(dict.fromkeys(SINGLES, 5.0))
    for known, known_us in found:
        graph.lower(known, known_us)
    priced = graph.latencies_us | {run: latency_us}
    through = [sum(priced[part] for part in cut) for cut in partitions(frozenset(priced)) if run in cut]
    assert abs(through_us(graph, run, latency_us) - min(through)) < 1e-9 * min(through)


def test_an_uncovered_layer_has_no_best():
    graph = CutGraph({Run(0, 5): 1.0})
    assert graph.best_us == inf
    assert graph.best_partition() == ()
    graph.lower(Run(6, 14), 2.0)
    assert graph.best_us == 3.0
    assert graph.best_partition() == (Run(0, 5), Run(6, 14))
