"""Block attention on an emulated machine: its copies, products, turns and clusters, and what they compute."""

from dataclasses import replace

import numpy as np
import pytest

from atoffer_rl.block_plan import Reach, block_plan
from atoffer_rl.run import Run
from atoffer_rl.workload import Workload
from tests.kernels.templates.block_choices import (
    BLOCKINGS,
    COPIED_QUERIES,
    DEFAULT,
    FOUR_SPLITS,
    LOADER,
    RUNS,
    SHORT,
    SMALL_LOADER,
    THREE_GROUPS,
    TWO_SPLITS,
    choice_of,
)
from tests.kernels.templates.checks import launch, random_qkv

SMALL = Workload(batch=1, seq_len=150, heads=1, head_dim=64, mask="strided")


@pytest.mark.parametrize("values", BLOCKINGS)
@pytest.mark.parametrize("run", RUNS)
def test_every_blocking(assert_emulated, run, values):
    dtype = "float16" if run.last == 5 else "bfloat16"
    assert_emulated(replace(SMALL, dtype=dtype), choice_of(run, **values))


@pytest.mark.parametrize(
    ("mask", "seq_len", "values"),
    [
        ("dense", 1, SHORT),
        ("dense", 257, FOUR_SPLITS),
        ("dense", 300, THREE_GROUPS | {"lazy": 1}),
        ("causal", 193, DEFAULT | {"shared_queries": 0}),
        ("causal", 300, LOADER),
        ("strided", 64, COPIED_QUERIES),
        ("strided", 330, FOUR_SPLITS),
        ("sliding:window=10", 130, TWO_SPLITS),
        ("longformer:window=8,global=3", 200, SMALL_LOADER),
        ("bigbird:window=8,global=2,random=1,block=8", 300, COPIED_QUERIES | {"splits": 4}),
        ("bigbird:window=8,global=2,random=1,block=8", 301, SHORT),
    ],
)
def test_masks_and_lengths(assert_emulated, mask, seq_len, values):
    assert_emulated(replace(SMALL, seq_len=seq_len, mask=mask), choice_of(Run(2, 6), **values))


@pytest.mark.parametrize("values", [LOADER, SHORT, FOUR_SPLITS, COPIED_QUERIES | {"residents": 1}])
def test_heads_of_128_channels(assert_emulated, values):
    assert_emulated(replace(SMALL, head_dim=128), choice_of(Run(1, 6), **values))


@pytest.mark.parametrize("values", [SHORT, SMALL_LOADER, FOUR_SPLITS])
def test_a_mask_for_each_sequence(assert_emulated, tmp_path, values):
    keep = np.random.default_rng(1).random((2, 150, 150)) < 0.1
    keep[0, 20:50] = False
    keep[0, 64:] = False
    keep[:, :, 30:35] = False
    np.save(tmp_path / "mask.npy", keep)
    workload = replace(SMALL, batch=2, mask=f"file:{tmp_path / 'mask.npy'}")
    assert_emulated(workload, choice_of(Run(2, 6), **values))


@pytest.mark.parametrize("residents", [4, 5, 64])
def test_blocks_of_a_cluster_wait_for_each_other(assert_emulated, residents):
    assert_emulated(replace(SMALL, heads=3), choice_of(Run(2, 5), **FOUR_SPLITS), residents)


def tiles_in_order(kernel, workload, tile_rows):
    """The (head, row tile) that each thread block stores: launches of ever more of them, on a result of NaN."""
    qkv, order = random_qkv(workload), []
    for blocks in range(1, kernel.program.grid[0] + 1):
        part = replace(kernel, program=replace(kernel.program, grid=(blocks, 1, 1)))
        stored = ~np.isnan(launch(part, workload, qkv)).reshape(workload.seq_len, workload.heads, -1).any(axis=2)
        tiles = np.logical_and.reduceat(stored, range(0, workload.seq_len, tile_rows), axis=0)
        order += [pair for pair in map(tuple, np.argwhere(tiles.T)) if pair not in order]
        assert len(order) == blocks
    return order


@pytest.mark.parametrize(
    ("mask", "reach"), [("causal", Reach.DIAGONAL), ("bigbird:window=8,global=2,random=1,block=8", Reach.LISTED)]
)
@pytest.mark.parametrize(
    ("seq_len", "heads", "values", "numbers"),
    [
        (150, 1, SHORT, [0, 1, 2]),  # one wave
        (150, 2, SHORT, [0, 1, 2, 5, 4, 3]),  # as many as run at once: those after the first wave in reverse
        (390, 1, SHORT, [0, 1, 2, 3, 4, 5, 6]),  # one more
        (130, 3, COPIED_QUERIES, [0, 1, 2, 8, 7, 6, 5, 4, 3]),
    ],
)
def test_order_of_blocks(assert_emulated, mask, reach, seq_len, heads, values, numbers):
    workload = replace(SMALL, seq_len=seq_len, heads=heads, mask=mask)
    plan = block_plan(workload.mask_spec, seq_len, values["tile_rows"], values["columns"])
    assert plan.reach is reach
    kernel = assert_emulated(workload, choice_of(Run(2, 6), **values))
    most_work_first = [(head, tile) for tile in plan.lists[0, :, 0, 0] for head in range(heads)]
    order = tiles_in_order(kernel, workload, values["tile_rows"])
    assert order == [most_work_first[number] for number in numbers]
