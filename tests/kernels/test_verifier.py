"""A verifier on the CPU: a launchable that writes the truth through raw pointers, and every way to spoil it."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest
import torch

from atoffer_rl.kernels import verifier
from atoffer_rl.kernels.inputs import Inputs
from atoffer_rl.kernels.reference import run_reference
from atoffer_rl.kernels.verifier import Case, Verifier, idle_factor, kept_bytes
from atoffer_rl.kernels.verify import EAGER_ERROR, ENOUGH_ELEMENTS
from atoffer_rl.run import Run
from atoffer_rl.workload import Workload

CPU = torch.device("cpu")
SMALL = Workload(batch=2, seq_len=20, heads=2, head_dim=32, ffn_dim=48, layers=1)
ATTENTION, SCORES, DENSE, TWO_RESULTS = Run(2, 6), Run(2, 3), Run(12, 13), Run(8, 10)
PADDED = replace(SMALL, lengths="list:20/6")


def judged(workload, run, launchable):
    return Verifier(workload, run, device=CPU).judge(launchable)


@pytest.mark.parametrize("run", [ATTENTION, SCORES, DENSE, TWO_RESULTS])
def test_the_truth_passes(run, honest):
    verdict = judged(SMALL, run, honest(SMALL, run))
    assert verdict.passed, verdict.reason
    assert 0 < verdict.max_error <= verdict.error_budget


def shift_column(tensors, pointers):
    tensors["merged"][..., 7] += 0.02


def skip_element(tensors, pointers):
    tensors["merged"][1, 3, 5] = torch.nan


def forget_mask(tensors, pointers):
    tensors["masked_scores"][0, 0, 0, 9] = 0.0


def swap_rows(tensors, pointers):
    tensors["ffn_sum"][:, [0, 1]] = tensors["ffn_sum"][:, [1, 0]]


def wrong_first_result(tensors, pointers):
    tensors["attn_norm"][0, 0, 0] += 0.1


def write_past_the_end(tensors, pointers):
    ctypes.c_uint8.from_address(pointers["merged"] + tensors["merged"].nbytes).value = 0


def write_before_the_start(tensors, pointers):
    ctypes.c_uint8.from_address(pointers["merged"] - 1).value = 0


def overwrite_residual(tensors, pointers):
    tensors["attn_norm"].copy_(tensors["ffn_sum"])


@pytest.mark.parametrize(
    ("run", "spoil", "reason"),
    [
        (ATTENTION, shift_column, "merged is off by"),
        (ATTENTION, skip_element, "merged holds NaN"),
        (SCORES, forget_mask, "-inf exactly where"),
        (DENSE, swap_rows, "ffn_sum is off by"),
        (TWO_RESULTS, wrong_first_result, "attn_norm is off by"),
        (ATTENTION, write_past_the_end, "outside its results"),
        (ATTENTION, write_before_the_start, "outside its results"),
        (DENSE, overwrite_residual, "over its inputs"),
    ],
)
def test_every_spoiled_result_fails(run, spoil, reason, honest):
    verdict = judged(SMALL, run, honest(SMALL, run, spoil))
    assert not verdict.passed
    assert reason in verdict.reason


def write_beyond(tensors, pointers):
    for name in {"merged", "masked_scores", "attn_sum"} & tensors.keys():
        tensors[name][1, ..., 6:, :] = 1.0


@pytest.mark.parametrize("run", [Run(2, 3), Run(3, 4), Run(2, 6), Run(4, 6), Run(1, 8)])
def test_the_truth_about_padded_sequences_passes(run, honest):
    for workload in (PADDED, replace(SMALL, lengths="uniform:shortest=0")):
        verdict = judged(workload, run, honest(workload, run))
        assert verdict.passed, verdict.reason


@pytest.mark.parametrize(("run", "reason"), [(Run(2, 6), "merged is off by"), (Run(2, 3), "-inf exactly where")])
def test_rows_of_attention_beyond_a_length_must_be_empty(run, reason, honest):
    assert reason in judged(PADDED, run, honest(PADDED, run, write_beyond)).reason
    full = judged(PADDED, run, honest(SMALL, run))
    assert not full.passed


def test_rows_of_other_results_beyond_a_length_may_be_anything(honest):
    run = Run(2, 8)
    assert judged(PADDED, run, honest(PADDED, run, write_beyond)).passed


PACKED = replace(SMALL, lengths="list:13/6", packed=True)


@pytest.mark.parametrize("run", [Run(1, 6), Run(2, 6), Run(2, 8), Run(0, 14), DENSE])
def test_the_truth_about_packed_sequences_passes(run, honest):
    for workload in (PACKED, replace(PACKED, lengths="uniform:shortest=0"), replace(PACKED, lengths="list:20/20")):
        verdict = judged(workload, run, honest(workload, run))
        assert verdict.passed, verdict.reason


def write_beyond_all_sequences(tensors, pointers):
    tensors["merged"].view(-1, PACKED.width)[19:] = torch.nan


def spoil_the_second_sequence(tensors, pointers):
    tensors["merged"].view(-1, PACKED.width)[13] += 0.1


@pytest.mark.parametrize(("spoil", "passes"), [(write_beyond_all_sequences, True), (spoil_the_second_sequence, False)])
def test_rows_of_packed_sequences_alone_are_judged(spoil, passes, honest):
    assert judged(PACKED, ATTENTION, honest(PACKED, ATTENTION, spoil)).passed == passes


def test_padded_sequences_are_not_packed_ones(honest):
    padded = replace(PACKED, packed=False)
    assert "is off by" in judged(PACKED, ATTENTION, honest(padded, ATTENTION)).reason


def test_small_results_take_eagers_error_over_more_draws(honest, monkeypatch):
    def eager_error(draws, seed):
        monkeypatch.setattr(verifier, "MOST_DRAWS", draws)
        case = Verifier(SMALL, DENSE, seed, CPU).case(Inputs.RANDOM)
        return case.ask(honest(SMALL, DENSE))[EAGER_ERROR].item()

    errors = [(eager_error(8, seed), eager_error(1, seed)) for seed in range(3)]
    assert all(many >= one for many, one in errors)
    assert any(many > one for many, one in errors)


LARGE = Workload(batch=2, seq_len=64, heads=16, head_dim=32, ffn_dim=32, layers=1, dtype="float32")
"""Its results of attention have exactly as many elements as are enough."""


def rows_of(*counts):
    """A mask whose rows keep so many columns each, in turn; the others keep none."""
    columns = np.arange(64)
    return np.stack([columns < count for count in counts] + [columns < 0] * (64 - len(counts)))


@pytest.mark.parametrize(
    ("keep", "draws"),
    [
        (rows_of(*range(64)), 1),
        (rows_of(*[2] * 64), 1),
        (rows_of(*[2] * 32), 2),
        (rows_of(5, 5), 8),
        (rows_of(5, *[1] * 63), 8),
        (rows_of(1, 1), 1),
        (rows_of(), 1),
        (np.stack([rows_of(*[2] * 64), rows_of()]), 2),
    ],
)
def test_elements_of_rows_that_mix_nothing_are_not_counted(tmp_path, keep, draws):
    np.save(tmp_path / "mask.npy", keep)
    workload = replace(LARGE, mask=f"file:{tmp_path / 'mask.npy'}")
    assert LARGE.rows * LARGE.width == ENOUGH_ELEMENTS
    assert len(Case(workload, ATTENTION, Inputs.RANDOM, 0, CPU, False)._eager_errors) == draws - 1
    assert len(Case(workload, Run(7, 7), Inputs.RANDOM, 0, CPU, False)._eager_errors) == 0


@pytest.mark.parametrize("mask", ["dense", "causal", "strided", "fixed", "sliding", "longformer", "bigbird"])
def test_of_ordinary_masks_every_element_counts(mask):
    assert idle_factor(Workload(seq_len=64, mask=mask), ATTENTION) == 1
    assert idle_factor(Workload(seq_len=1024, mask=mask), Run(0, 14)) == 1


def test_rows_beyond_a_length_are_not_counted():
    padded = replace(LARGE, mask="causal", lengths="list:64/9")
    assert idle_factor(padded, ATTENTION) == idle_factor(replace(padded, packed=True), ATTENTION) == 2
    assert idle_factor(replace(padded, lengths="list:3/0"), Run(4, 6)) == 64
    assert idle_factor(replace(padded, lengths="list:0/1"), ATTENTION) == 1
    assert idle_factor(padded, Run(2, 2)) == idle_factor(padded, Run(8, 9)) == 1


@pytest.mark.parametrize("workload", [SMALL, PADDED, PACKED])
def test_references_that_are_small_are_computed_once(workload, honest, monkeypatch):
    computed = []

    def counted(*arguments):
        computed.append(arguments)
        return run_reference(*arguments)

    monkeypatch.setattr(verifier, "run_reference", counted)
    keeps = Verifier(workload, ATTENTION, device=CPU)
    monkeypatch.setattr(verifier, "MOST_HOST_BYTES", 0)
    forgets = Verifier(workload, ATTENTION, device=CPU)
    verdict = keeps.judge(honest(workload, ATTENTION))
    once = len(computed)
    assert verdict == keeps.judge(honest(workload, ATTENTION))
    assert len(computed) == once > 0
    assert verdict == forgets.judge(honest(workload, ATTENTION)) == forgets.judge(honest(workload, ATTENTION))
    assert len(computed) == 3 * once


def test_whoever_writes_outside_may_have_spoiled_what_is_kept(honest):
    judge = Verifier(SMALL, ATTENTION, device=CPU)
    assert judge.judge(honest(SMALL, ATTENTION)).passed

    def write_everywhere(tensors, pointers):
        write_past_the_end(tensors, pointers)
        for kind in Inputs:
            for reference in judge.case(kind)._references:
                reference.exact["merged"].zero_()

    assert not judge.judge(honest(SMALL, ATTENTION, write_everywhere)).passed
    assert judge.judge(honest(SMALL, ATTENTION)).passed


def test_what_is_kept_grows_with_inputs_and_results():
    elements = SMALL.batch * SMALL.seq_len * SMALL.width
    assert kept_bytes(SMALL, ATTENTION) == 3 * (3 * elements * 2 + elements * (2 + 8))
    assert kept_bytes(replace(SMALL, batch=4), ATTENTION) == 2 * kept_bytes(SMALL, ATTENTION)
    assert kept_bytes(PACKED, ATTENTION) > kept_bytes(SMALL, ATTENTION) + 3 * 3 * elements * 2
