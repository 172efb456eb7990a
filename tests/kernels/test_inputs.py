"""What is drawn: the same from the same seed, of its kind, under the mask and within the lengths."""

import torch

from atoffer_rl.kernels import inputs
from atoffer_rl.kernels.inputs import PEAK, Inputs, draw_inputs
from atoffer_rl.run import Run
from atoffer_rl.workload import Workload

SMALL = Workload(batch=2, seq_len=19, heads=3, head_dim=32, ffn_dim=70, layers=2, dtype="float32")


def test_inputs_repeat_and_are_what_their_kind_says():
    peaked = draw_inputs(SMALL, Run(2, 2), Inputs.PEAKED, 5, "cpu")["qkv"]
    assert torch.equal(peaked, draw_inputs(SMALL, Run(2, 2), Inputs.PEAKED, 5, "cpu")["qkv"])
    assert not torch.equal(peaked, draw_inputs(SMALL, Run(2, 2), Inputs.PEAKED, 6, "cpu")["qkv"])
    assert peaked[..., : SMALL.width].std() > PEAK / 2
    assert peaked[..., SMALL.width :].std() < 2
    coded = draw_inputs(SMALL, Run(0, 0), Inputs.CODED, 0, "cpu")
    assert torch.equal(coded["x"] * 16, (coded["x"] * 16).round())
    rows = coded["x"].view(-1, SMALL.width)
    assert len(rows.unique(dim=0)) == len(rows)
    assert len(rows.T.unique(dim=0)) == SMALL.width


def test_codes_are_the_same_in_pieces(monkeypatch):
    whole = draw_inputs(SMALL, Run(3, 4), Inputs.CODED, 0, "cpu")["scores"]
    monkeypatch.setattr(inputs, "CODES_AT_ONCE", 100)
    assert torch.equal(draw_inputs(SMALL, Run(3, 4), Inputs.CODED, 0, "cpu")["scores"], whole)


def test_probabilities_drawn_are_row_stochastic_under_the_mask():
    probs = draw_inputs(SMALL, Run(5, 5), Inputs.RANDOM, 0, "cpu")["probs"]
    keep = torch.tensor(SMALL.mask_spec.keep(SMALL.seq_len))[:, None].expand_as(probs)
    torch.testing.assert_close(probs.sum(-1), torch.ones(probs.shape[:-1]))
    assert not probs[~keep].any()
    scores = draw_inputs(SMALL, Run(4, 4), Inputs.RANDOM, 0, "cpu")["masked_scores"]
    assert torch.equal(scores.isneginf(), ~keep)


def test_lengths_are_extreme_and_inputs_as_they_were():
    padded = Workload(**SMALL.to_json() | {"lengths": "uniform:shortest=0"})
    seen = {n for kind in Inputs for n in draw_inputs(padded, Run(3, 3), kind, 0, "cpu")["lengths"].tolist()}
    assert {0, 1, 19} <= seen
    full, other = (draw_inputs(w, Run(2, 6), Inputs.RANDOM, 0, "cpu")["qkv"] for w in (SMALL, padded))
    assert torch.equal(full, other)
    probs = draw_inputs(padded, Run(5, 5), Inputs.RANDOM, 0, "cpu")["probs"]
    lengths = draw_inputs(padded, Run(2, 6), Inputs.RANDOM, 0, "cpu")["lengths"]
    for sequence, length in zip(probs, lengths, strict=True):
        assert not sequence[:, length:].any()
        assert not sequence[..., length:].any()
