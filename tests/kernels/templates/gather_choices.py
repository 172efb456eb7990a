"""Choices of gathering attention that tests share."""

from atoffer_rl.device import H100
from atoffer_rl.kernels.templates.gather import TEMPLATE
from atoffer_rl.row_order import Order
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.workload import Workload

RUNS = [Run(1, 5), Run(1, 6), Run(2, 5), Run(2, 6)]
ARCHS = ["sm_80", "sm_86", "sm_89", "sm_90a"]
MASKS = [
    "dense",
    "causal",
    "strided",
    "fixed",
    "sliding:window=10",
    "longformer:window=8,global=3",
    "bigbird:window=8,global=2,random=1,block=8",
]
DEFAULT = {
    "tile_rows": 64,
    "chunk": 64,
    "step": 64,
    "warps": 4,
    "copy_warps": 1,
    "stages": 2,
    "buffers": 2,
    "residents": 1,
    "order": Order.NATURAL,
    "splits": 1,
}
LOW = {"tile_rows": 32, "warps": 2, "step": 32}
SMALL = Workload(batch=2, seq_len=77, heads=2, head_dim=32)
SMALL_WIDE = Workload(batch=2, seq_len=150, heads=2, head_dim=32, mask="longformer:window=8,global=3")
ORDERS = [{**LOW, "order": order, "stages": 3} for order in Order if order is not Order.WIDE_APART]
WIDE = {**LOW, "order": Order.WIDE_APART, "stages": 3}
PIECES = {**LOW, "splits": 3, "chunk": 32}
ONE_BUFFER = {**LOW, "buffers": 1, "order": Order.SPLIT}
STEP_WARPS = {**LOW, "splits": 2, "warps": 4, "step": 16}


def choice_of(run=RUNS[2], **values):
    return Choice(run, "gather", tuple((DEFAULT | values).items()))


def possible_choice(workload, run=RUNS[2], **values):
    """A choice that the template itself calls possible."""
    assert TEMPLATE.why_not(workload, run, H100) is None
    assert TEMPLATE.impossible(workload, run, DEFAULT | values, H100) is None
    return choice_of(run, **values)
