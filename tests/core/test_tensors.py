"""Which runs touch a tensor that is too large to index."""

from dataclasses import replace

import pytest

from atoffer_rl.operators import run_activations, run_results
from atoffer_rl.run import Run
from atoffer_rl.tensors import too_large
from tests.large_scores import LARGE_SCORES

SCORE_MATRICES = {"scores", "masked_scores", "probs"}


def test_runs_that_read_or_store_scores_are_too_large():
    for first in range(15):
        for last in range(first, 15):
            touched = {*run_activations(Run(first, last)), *run_results(Run(first, last))}
            assert bool(too_large(LARGE_SCORES, Run(first, last))) == bool(touched & SCORE_MATRICES)


@pytest.mark.parametrize(("run", "name"), [((2, 2), "scores"), ((2, 3), "masked_scores"), ((5, 6), "probs")])
def test_the_reason_names_the_tensor(run, name):
    assert too_large(LARGE_SCORES, Run(*run)).startswith(f"{name} would have 2,147,483,648 elements")


def test_one_sequence_less_is_small_enough():
    assert too_large(replace(LARGE_SCORES, batch=LARGE_SCORES.batch - 1), Run(2, 2)) is None
