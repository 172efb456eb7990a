"""A scheme as a Markdown table and as a picture of the cut layer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from atoffer_rl.figures import new_figure
from atoffer_rl.kernels.registry import all_templates
from atoffer_rl.operators import OPERATOR_COUNT, OPERATORS
from atoffer_rl.scheme import Scheme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP = 0.06


def scheme_table(scheme: Scheme, latencies_us: Sequence[float]) -> str:
    """One Markdown row a segment: operators, template, parameters, latency in us."""
    rows = ["| operators | template | parameters | us |", "| --- | --- | --- | ---: |"]
    for choice, latency_us in zip(scheme.choices, latencies_us, strict=True):
        names = ", ".join(op.name for op in OPERATORS[choice.run.first : choice.run.last + 1])
        rows.append(f"| {choice.run} {names} | {choice.template} | {choice.values} | {latency_us:.2f} |")
    return "\n".join([*rows, f"| all | | | {sum(latencies_us):.2f} |"])


def draw_scheme(scheme: Scheme, latencies_us: Sequence[float]) -> "Figure":
    """The layer's operators from left to right, a box around each segment, coloured by template."""
    figure = new_figure(12, 2.6)
    from matplotlib.patches import FancyBboxPatch

    axes = figure.add_subplot()
    colours = {template.name: f"C{k}" for k, template in enumerate(all_templates())}
    for choice, latency_us in zip(scheme.choices, latencies_us, strict=True):
        first, width = choice.run.first, choice.run.last - choice.run.first + 1
        style = f"round,pad=0,rounding_size={GAP}"
        corner = (first + GAP, GAP)
        axes.add_patch(
            FancyBboxPatch(corner, width - 2 * GAP, 1 - 2 * GAP, boxstyle=style, fc=colours[choice.template], alpha=0.5)
        )
        axes.text(first + width / 2, 0.5, f"{choice.template}\n{latency_us:.1f} us", ha="center", va="center", size=8)
    axes.set_xlim(0, OPERATOR_COUNT)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.set_xticks(
        [k + 0.5 for k in range(OPERATOR_COUNT)], [op.name for op in OPERATORS], rotation=35, ha="right", size=7
    )
    axes.set_title(f"{len(scheme.choices)} segments, {sum(latencies_us):.1f} us a layer", size=9)
    return figure
