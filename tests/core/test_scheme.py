"""Schemes: canonical, hashable, round-trip through JSON, counted right, and refused when they are none."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoffer_rl.errors import SchemeError
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme, count_partitions, count_schemes, finest_partition
from tests.partitions import partitions

cut_sets = st.sets(st.integers(1, 14))


def scheme_of(cuts, template="chain"):
    edges = [0, *sorted(cuts), 15]
    runs = [Run(first, end - 1) for first, end in pairwise(edges)]
    return Scheme(tuple(Choice(run, template, (("rows", run.first + 1), ("lanes", 32))) for run in runs))


@given(cut_sets)
def test_round_trip(cuts):
    scheme = scheme_of(cuts)
    again = Scheme.from_json(json.loads(json.dumps(scheme.to_json())))
    assert again == scheme
    assert hash(again) == hash(scheme)
    assert again.key == scheme.key


@given(cut_sets, cut_sets)
def test_keys_tell_schemes_apart(left, right):
    assert (scheme_of(left).key == scheme_of(right).key) == (left == right)
    assert scheme_of(left).key != scheme_of(left, "gemm").key


def test_the_order_of_parameters_does_not_count():
    choice = Choice(Run(2, 6), "gather", (("warps", 4), ("chunk", 64)))
    sorted_by_a_tool = Choice.from_json(json.loads(json.dumps(choice.to_json(), sort_keys=True)))
    assert sorted_by_a_tool.parameters != choice.parameters
    assert sorted_by_a_tool == choice
    assert {sorted_by_a_tool: 1}[choice] == 1
    assert choice != Choice(Run(2, 6), "gather", (("warps", 64), ("chunk", 4)))
    assert choice != "gather"


@pytest.mark.parametrize("value", [1.5, 4.0, True, "4", None, float("inf"), [4]])
@pytest.mark.parametrize("place", ["run", "parameters"])
def test_numbers_are_whole(place, value):
    written = {"run": [0, 3], "template": "chain", "parameters": {"rows": 4}}
    written |= {"run": [0, value]} if place == "run" else {"parameters": {"rows": value}}
    with pytest.raises(SchemeError, match=r"not a choice: .*whole numbers") as failure:
        Choice.from_json(written)
    assert "\n" not in str(failure.value)


def test_a_long_mistake_is_not_quoted_whole():
    with pytest.raises(SchemeError) as failure:
        Choice.from_json({"run": "x" * 10_000})
    assert len(str(failure.value)) < 300


@pytest.mark.parametrize(
    "value",
    [
        {"segments": [{"run": [10**5000, 14], "template": "chain", "parameters": {}}]},
        {"segments": [{"run": [0, 14], "template": "chain", "parameters": {"rows": 10**5000}}]},
        {"segments": [{"run": [0, 14], "template": "chain", "parameters": {"rows": 2**63}}]},
        {"segments": [{"run": [0, 14], "template": 10**5000, "parameters": {}}]},
        {"segments": [{"run": [0, 14], "template": "chain", "parameters": {}}], "execution": 10**5000},
    ],
    ids=["run", "parameter", "large parameter", "template", "execution"],
)
def test_numbers_that_are_too_large_are_refused(value):
    with pytest.raises(SchemeError) as failure:
        Scheme.from_json(value)
    assert len(str(failure.value)) < 300
    with pytest.raises(SchemeError, match=r"segment <Run too large to show> must lie in operators 0 to 14"):
        Scheme((Choice(Run(0, 10**5000), "chain"),))


def test_words():
    choice = Choice(Run(2, 6), "rowwise", (("warps", 4),))
    assert str(choice) == "[2,6]:rowwise(warps=4)"
    assert choice["warps"] == 4
    assert 3 in choice.run
    assert 7 not in choice.run


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [Run(0, 13)],
        [Run(1, 14)],
        [Run(0, 7), Run(7, 14)],
        [Run(0, 7), Run(9, 14)],
        [Run(0, 14), Run(15, 15)],
        [Run(0, -1), Run(0, 14)],
        [Run(8, 14), Run(0, 7)],
    ],
)
def test_runs_must_cover_the_layer_in_order(runs):
    with pytest.raises(SchemeError):
        Scheme(tuple(Choice(run, "chain") for run in runs))


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"segments": 3},
        {"segments": [3]},
        {"segments": [{"run": [0, 14]}]},
        {"segments": [{"run": [0, 14], "template": "chain", "parameters": []}]},
        {"segments": [{"run": [0, "x"], "template": "chain", "parameters": {}}]},
        {"segments": [{"run": [0, 14], "template": "chain", "parameters": {"rows": "many"}}]},
        {"segments": [{"run": [0, 14], "template": "chain", "parameters": {}}], "execution": "magic"},
    ],
)
def test_bad_json(value):
    with pytest.raises(SchemeError) as caught:
        Scheme.from_json(value)
    assert "\n" not in str(caught.value)


@given(st.sets(st.tuples(st.integers(0, 14), st.integers(0, 14)).map(sorted).map(lambda ends: Run(*ends))))
def test_counts_agree_with_enumeration(runs):
    legal = frozenset(runs) | {Run(operator, operator) for operator in range(10)}
    listed = list(partitions(legal))
    assert len(listed) == len(set(listed)) == count_partitions(legal)
    counts = {run: 1 + run.last - run.first for run in legal}
    total = 0
    for partition in listed:
        product = 1
        for run in partition:
            product *= counts[run]
        total += product
    assert total == count_schemes(counts)


@given(st.frozensets(st.builds(lambda a, b: Run(min(a, b), max(a, b)), st.integers(0, 14), st.integers(0, 14))))
def test_the_finest_partition_has_the_most_runs(legal):
    for more in (frozenset(), {Run(0, 3), Run(4, 14)}, {Run(k, k) for k in range(6)} | {Run(6, 14)}):
        runs = legal | more
        listed = list(partitions(runs))
        finest = finest_partition(runs)
        assert finest in listed if listed else finest == ()
        assert all(len(other) <= len(finest) for other in listed)
        assert all(finest <= other for other in listed if len(other) == len(finest))


def test_too_few_and_too_many_segments_are_told_apart():
    with pytest.raises(SchemeError, match="this has none"):
        Scheme(())
    whole = scheme_of({3, 9})
    with pytest.raises(SchemeError, match=r"\[9,14\] is one too many"):
        Scheme((*whole.choices, whole.choices[-1]))
    with pytest.raises(SchemeError, match="stops before 9"):
        Scheme(whole.choices[:-1])
