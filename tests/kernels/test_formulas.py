"""Formulas in cases that a whole layer does not show; `test_reference.py` has the layer."""

import torch

from atoffer_rl.kernels.formulas import softmax_rows


def test_softmax_of_a_row_that_keeps_nothing_is_zero():
    rows = torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf], [-torch.inf, 900.0]])
    assert softmax_rows(rows).tolist() == [[0.5, 0.5], [0.0, 0.0], [0.0, 1.0]]
