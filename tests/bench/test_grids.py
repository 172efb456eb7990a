"""Grids hold the cells that they are named for."""

from math import prod

import pytest

from atoffer_rl.bench.grids import GRIDS, grid_workloads
from atoffer_rl.masks import parse_mask
from atoffer_rl.workload import Workload

COUNTS = {"paper": 42, "long": 8, "masks": 48, "fp32": 16, "heads": 28, "small": 8}


def fields(name):
    return GRIDS[name].cells(Workload())


@pytest.mark.parametrize("name", GRIDS)
def test_every_cell_is_there_once(name):
    cells = fields(name)
    grid = GRIDS[name]
    counts = [len(grid.batches), len(grid.lengths), len(grid.masks), max(1, len(grid.shapes))]
    assert len({tuple(cell.values()) for cell in cells}) == len(cells) == prod(counts) == COUNTS[name]


def test_shapes_and_formats():
    assert {(cell["heads"], cell["head_dim"]) for cell in fields("heads")} == {(16, 128), (12, 32)}
    assert {cell["dtype"] for cell in fields("fp32")} == {"float32"}
    assert {(cell["heads"], cell["head_dim"], cell["dtype"]) for cell in fields("masks")} == {(12, 64, "float16")}
    assert {cell["batch"] for cell in fields("long")} == {1, 16}
    assert {cell["seq_len"] for cell in fields("long")} == {2048, 4096}


def test_documents_share_the_sequence():
    for cell in fields("masks"):
        mask = parse_mask(cell["mask"], cell["seq_len"])
        if mask.name == "document":
            assert mask.lengths == (cell["seq_len"] // 8,) * 8


def test_the_rest_is_taken_from_the_workload():
    cells = grid_workloads("small", Workload(heads=3, head_dim=8, dtype="bfloat16"))
    assert {(cell.heads, cell.head_dim, cell.dtype) for cell in cells} == {(3, 8, "bfloat16")}
