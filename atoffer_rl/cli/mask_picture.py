"""A mask as a picture, and beside it which item of a plan computes which pair."""

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoffer_rl.cli.plan_table import order_name
from atoffer_rl.figures import new_figure
from atoffer_rl.masks import Keep, Mask
from atoffer_rl.plan_summary import PlanMap, PlanSummary, plan_map
from atoffer_rl.row_order import Order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Shares: TypeAlias = NDArray[np.float64]
CELLS = 512
"""Cells a side that a mask is drawn with at most."""
PANEL_INCHES = 5.5
GOLDEN_SHARE = 0.618
"""Multiples of it, modulo 1, lie apart: neighbouring items get shades that can be told apart."""
LIGHTEST, LEGEND_SHADE, DARKEST = 0.35, 0.7, 0.95
NEAR_COLOURS, FAR_COLOURS = "Blues", "Oranges"


def draw_mask(mask: Mask, seq_len: int, plan: PlanSummary | None) -> "Figure":
    """The first square of `mask`; beside it `plan`, if there is one, and the columns that its tiles gather."""
    panels = 3 if plan else 1
    figure = new_figure(PANEL_INCHES * panels, PANEL_INCHES + 0.5)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    keep = mask.keep(seq_len)[0]
    tones = tone(keep)
    _show(axes[0], 1 - tones[..., None] * (1 - _colours(NEAR_COLOURS, np.array([DARKEST]))), seq_len)
    axes[0].set_title(f"{mask}, sequence length {seq_len}")
    if plan:
        placed = plan_map(mask, seq_len, plan.order, plan.tile_rows)
        _draw_pairs(axes[1], placed, tones, seq_len)
        axes[1].set_title(f"{order_name(plan.order)}, tiles of {plan.tile_rows} rows: a shade an item")
        if placed.far.any():
            _name_parts(axes[1], plan.order)
        _draw_gathered(axes[2], placed, seq_len, plan)
    return figure


def cells(square: NDArray[np.generic]) -> NDArray[np.generic]:
    """(rows, cell, columns, cell): `square` cut into at most `CELLS` cells a side; edges are padded with zeros."""
    size = -(-len(square) // CELLS)
    padding = -len(square) % size
    padded = np.pad(square, (0, padding)) if padding else square
    count = len(padded) // size
    return padded.reshape(count, size, count, size)


def tone(keep: Keep) -> Shares:
    """How dark each cell is: the root of the share that it keeps, so that single diagonals stay visible."""
    tones: Shares = np.sqrt(cells(keep).mean(axis=(1, 3)))
    return tones


def _draw_pairs(axes: "Axes", placed: PlanMap, tones: Shares, seq_len: int) -> None:
    """Where a cell holds pairs of several items, the last of them is shown, and the far part before the near."""
    # Items are numbered from 1 here, so that the padding of edges is nobody's.
    item = cells(placed.items + 1).max(axis=(1, 3))
    far: Keep = np.any(cells(placed.far), axis=(1, 3))
    colours = np.where(far[..., None], _item_colours(FAR_COLOURS, item), _item_colours(NEAR_COLOURS, item))
    _show(axes, 1 - tones[..., None] * (1 - colours), seq_len)


def _name_parts(axes: "Axes", order: Order) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    near, far = ("second pass", "first pass") if order is Order.TWO_PASSES else ("near part", "far part")
    named = {near: NEAR_COLOURS, far: FAR_COLOURS}
    handles = [Patch(color=colormaps[colours](LEGEND_SHADE), label=label) for label, colours in named.items()]
    axes.legend(handles=handles, loc="upper right")


def _draw_gathered(axes: "Axes", placed: PlanMap, seq_len: int, plan: PlanSummary) -> None:
    number = np.arange(len(placed.gathered))
    far_items = np.zeros(len(number), np.bool_)
    if plan.order is Order.SPLIT:
        far_items[np.unique(placed.items[placed.far])] = True
    colours = np.where(
        far_items[:, None], _item_colours(FAR_COLOURS, number + 1), _item_colours(NEAR_COLOURS, number + 1)
    )
    axes.bar(number, placed.gathered, width=1, color=colours)
    axes.axhline(seq_len, color="grey", linestyle="--", label="dense")
    axes.legend()
    axes.set(title="gathered columns per item", xlabel="item, in the order of the plan", ylabel="columns")


def _show(axes: "Axes", image: Shares, seq_len: int) -> None:
    size = -(-seq_len // CELLS)
    width = len(image) * size
    axes.imshow(image, extent=(0, width, width, 0))
    axes.set(xlim=(0, seq_len), ylim=(seq_len, 0), xlabel="key j", ylabel="query i")


def _item_colours(name: str, number: NDArray[np.generic]) -> Shares:
    share = number.astype(np.float64) * GOLDEN_SHARE % 1
    return _colours(name, LIGHTEST + (DARKEST - LIGHTEST) * share)


def _colours(name: str, shades: NDArray[np.float64]) -> Shares:
    """(..., 3): red, green and blue of `shades` from 0 to 1 of a colour map."""
    from matplotlib import colormaps

    colours: Shares = np.asarray(colormaps[name](shades))[..., :3]
    return colours
