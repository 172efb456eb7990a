"""Figures that are drawn into files alone."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width_inches: float, height_inches: float) -> "Figure":
    """An empty figure. A notebook's `MPLBACKEND`, which this environment may lack, means nothing to it."""
    os.environ["MPLBACKEND"] = "agg"
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches), layout="constrained")
