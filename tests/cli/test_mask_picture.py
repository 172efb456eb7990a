"""How masks and plans are drawn."""

import numpy as np
import pytest

from atoffer_rl.cli.mask_picture import CELLS, cells, draw_mask, tone
from atoffer_rl.masks import parse_mask
from atoffer_rl.plan_summary import plan_summary
from atoffer_rl.row_order import Order


@pytest.mark.parametrize("seq_len", [1, 37, CELLS, CELLS + 1, 4 * CELLS])
def test_a_mask_is_drawn_with_few_cells(seq_len):
    count = len(cells(np.ones((seq_len, seq_len), bool)))
    assert min(seq_len, CELLS // 2) <= count <= CELLS


def test_single_diagonals_stay_visible():
    keep = np.eye(4 * CELLS, dtype=bool)
    np.testing.assert_array_equal(tone(keep), np.eye(CELLS) * 0.5)


@pytest.mark.parametrize("order", list(Order))
def test_plans_have_three_panels(order):
    mask = parse_mask("strided", 100)
    figure = draw_mask(mask, 100, plan_summary(mask, 100, order, 32, 128))
    drawn = figure.axes[1].images[0].get_array()
    kept = mask.keep(100)[0]
    np.testing.assert_array_equal((drawn < 1).any(axis=2), kept)
    parts = 2 if order in (Order.SPLIT, Order.TWO_PASSES) else 1
    reddish = drawn[..., 0] > drawn[..., 2]
    assert reddish[kept].any() == (parts == 2)
    assert not reddish[kept].all()
    bars = figure.axes[2].containers[0]
    assert len(bars) == (8 if order is Order.SPLIT else 4)


def test_without_a_plan_only_the_mask_is_drawn():
    assert len(draw_mask(parse_mask("fixed", 64), 64, None).axes) == 1
