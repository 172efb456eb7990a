"""Which runs touch a tensor that is too large to index."""

from dataclasses import replace

import pytest

from atoffer_rl.operators import run_activations, run_results
from atoffer_rl.run import Run
from atoffer_rl.tensors import layer_tensors, no_place, run_inputs
from atoffer_rl.workload import Workload
from tests.large_scores import LARGE_SCORES

SCORE_MATRICES = {"scores", "masked_scores", "probs"}


def test_runs_that_read_or_store_scores_are_no_place():
    for first in range(15):
        for last in range(first, 15):
            touched = {*run_activations(Run(first, last)), *run_results(Run(first, last))}
            assert bool(no_place(LARGE_SCORES, Run(first, last))) == bool(touched & SCORE_MATRICES)


@pytest.mark.parametrize(("run", "name"), [((2, 2), "scores"), ((2, 3), "masked_scores"), ((5, 6), "probs")])
def test_the_reason_names_the_tensor(run, name):
    assert no_place(LARGE_SCORES, Run(*run)).startswith(f"{name} would have 2,147,483,648 elements")


def test_packed_sequences_store_rows_of_tokens_alone():
    packed = Workload(lengths="uniform", packed=True)
    for first in range(15):
        for last in range(first, 15):
            touched = {*run_activations(Run(first, last)), *run_results(Run(first, last))}
            refused = bool(touched & {*SCORE_MATRICES, "context"})
            assert bool(no_place(packed, Run(first, last))) == refused
            assert refused == (3 <= first <= 6 or 2 <= last <= 5)


def test_packed_sequences_have_offsets_beside_their_lengths():
    packed = Workload(lengths="uniform", packed=True)
    assert layer_tensors(packed)["offsets"].shape == (16,)
    assert run_inputs(packed, Run(2, 6)) == ("qkv", "lengths", "offsets")
    assert run_inputs(packed, Run(8, 8)) == ("out_raw", "x")
    assert "offsets" not in layer_tensors(Workload(lengths="uniform"))


def test_one_sequence_less_is_small_enough():
    assert no_place(replace(LARGE_SCORES, batch=LARGE_SCORES.batch - 1), Run(2, 2)) is None
