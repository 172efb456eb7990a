"""Distributions of sequence lengths: canonical text, draws, and a workload that has one."""

import json

import numpy as np
import pytest

from atoffer_rl.errors import WorkloadError
from atoffer_rl.lengths import parse_lengths
from atoffer_rl.mask_structure import kept_within
from atoffer_rl.records import describe, recorded_tables
from atoffer_rl.roofline import kept_pairs, run_bytes, valid_share
from atoffer_rl.run import Run
from atoffer_rl.signature import signature
from atoffer_rl.tensors import LENGTHS, layer_tensors, run_inputs
from atoffer_rl.workload import Workload

SMALL = {"batch": 3, "seq_len": 10}
BOUNDS = {"uniform:shortest=2,longest=7": (2, 7), "uniform:shortest=0,longest=0": (0, 0), "list:0/10/3": (0, 10)}


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("full", "full"),
        ("uniform", "uniform:shortest=1,longest=10"),
        ("uniform:longest=4,shortest=0", "uniform:shortest=0,longest=4"),
        ("list:0/10/03", "list:0/10/3"),
    ],
)
def test_canonical_text(text, canonical):
    assert str(parse_lengths(text, **SMALL)) == canonical
    assert str(parse_lengths(canonical, **SMALL)) == canonical


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "lengths must be text such as"),
        ("", "unknown lengths ''"),
        ("half", "unknown lengths 'half': use one of full, uniform, list"),
        ("full:3", "unknown lengths 'full:3'"),
        ("uniform:shortest=4,longest=3", "shortest=4 is over longest=3"),
        ("uniform:shortest=-1", "shortest must be a whole number from 0 to seq_len 10, not '-1'"),
        ("uniform:longest=11", "longest must be a whole number from 0 to seq_len 10, not '11'"),
        ("uniform:longest=ten", "not 'ten'"),
        ("uniform:longest=3,longest=4", "gives a parameter twice"),
        ("uniform:middle=3", "has no parameter 'middle'"),
        ("list:", "list: a length must be a whole number from 0 to seq_len 10, not ''"),
        ("list:1/2", "holds 2 lengths, but batch is 3"),
        ("list:1/2/11", "not '11'"),
        ("list:1/2/³", "not '³'"),
    ],
)
def test_what_is_no_distribution_is_refused_in_a_line(text, says):
    with pytest.raises(WorkloadError) as caught:
        Workload(**SMALL, lengths=text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", BOUNDS)
def test_draws_stay_inside_and_repeat(text):
    lengths, (shortest, longest) = parse_lengths(text, **SMALL), BOUNDS[text]
    for make in (lengths.draw, lengths.draw_extremes):
        for seed in range(9):
            drawn = make(3, seed)
            assert drawn.dtype == np.int32
            assert drawn.shape == (3,)
            assert shortest <= drawn.min() <= drawn.max() <= longest
            np.testing.assert_array_equal(drawn, make(3, seed))
    assert lengths.typical(3).dtype == np.int32
    assert lengths.mean(np.arange(11.0)) == pytest.approx(lengths.typical(3).mean(), abs=0.5)


def test_extremes_are_tried_in_batches_of_any_size():
    lengths = parse_lengths("uniform:shortest=0,longest=10", 1, 10)
    assert {0, 1, 10} <= set(lengths.draw_extremes(5, 0).tolist())
    assert {0, 1, 10} <= {int(lengths.draw_extremes(1, seed)[0]) for seed in range(4)}


def test_typical_lengths_cover_the_distribution():
    lengths = parse_lengths("uniform:shortest=0,longest=9", 10, 10)
    assert sorted(lengths.typical(10)) == list(range(10))
    assert parse_lengths("uniform:shortest=0,longest=10", 1, 10).typical(1) == [5]


def test_full_lengths_change_nothing():
    workload = Workload()
    assert workload == Workload(lengths="full") == Workload.from_json(workload.to_json() | {"lengths": "full"})
    assert workload.key == "9b68b280ab48"
    assert LENGTHS not in workload.to_json()
    assert LENGTHS not in layer_tensors(workload)
    assert run_inputs(workload, Run(2, 6)) == ("qkv",)
    assert "lengths" not in describe(workload)


def test_recorded_tables_still_match():
    for table in recorded_tables():
        segments = {(trial.subject, trial.choice.run) for trial in table.trials if trial.choice is not None}
        runs = {run for _, run in segments}
        assert segments <= {(signature(w, run), run) for w in table.header.workloads for run in runs}
        forwards = {trial.subject for trial in table.trials if trial.choice is None}
        assert forwards <= {f"workload={workload.key}" for workload in table.header.workloads}


def test_a_padded_workload_round_trips_and_is_another_one():
    padded = Workload(lengths="uniform")
    again = Workload.from_json(json.loads(json.dumps(padded.to_json())))
    assert again == padded
    assert again.lengths == "uniform:shortest=1,longest=256"
    assert padded.key not in (Workload().key, Workload(lengths="uniform:longest=255").key)
    assert "uniform" in describe(padded)


def test_only_runs_with_the_mask_read_lengths():
    full, padded = Workload(), Workload(lengths="uniform")
    for first in range(15):
        for last in range(first, 15):
            run = Run(first, last)
            masked = first <= 3 <= last
            assert (LENGTHS in run_inputs(padded, run)) == masked
            assert (signature(padded, run) != signature(full, run)) == masked
    assert layer_tensors(padded)[LENGTHS].shape == (16,)
    assert layer_tensors(padded)[LENGTHS].size_bytes == 64


def test_costs_are_those_of_the_tokens_that_are_there():
    workload = Workload(batch=3, seq_len=40, heads=2, mask="strided", lengths="list:0/40/11")
    keep = workload.mask_spec.keep(40)[0]
    within = [int(keep[:n, :n].sum()) for n in range(41)]
    np.testing.assert_array_equal(kept_within(workload.mask_spec, 40), within)
    assert kept_pairs(workload) == 2 * (within[0] + within[40] + within[11])
    assert valid_share(workload) == pytest.approx(51 / 120)
    full = Workload(batch=3, seq_len=40, heads=2, mask="strided")
    assert run_bytes(workload, Run(2, 6)) < run_bytes(full, Run(2, 6))
    assert run_bytes(workload, Run(7, 8)) == run_bytes(full, Run(7, 8))
