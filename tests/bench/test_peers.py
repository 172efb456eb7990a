"""Peers compute what the reference computes; no GPU."""

import pytest
import torch

from atoffer_rl.bench.contest import Standing, row_of
from atoffer_rl.bench.mha import GRIDS, grid_workloads
from atoffer_rl.bench.peers import attention_function, layer_function, peers_of
from atoffer_rl.bench.record import table_of
from atoffer_rl.kernels.reference import Inputs, draw_inputs, draw_weights, layer_reference, run_reference
from atoffer_rl.kernels.verify import Verdict
from atoffer_rl.run import Run
from atoffer_rl.workload import Workload

CPU = torch.device("cpu")


def small(mask: str, activation: str = "gelu") -> Workload:
    return Workload(2, 19, 3, 8, 40, 2, dtype="float32", mask=mask, activation=activation)


@pytest.mark.parametrize("mask", ["strided", "fixed", "longformer:window=4,global=1"])
@pytest.mark.parametrize("name", ["eager naive", "eager SDPA"])
def test_attention_agrees_with_the_reference(name: str, mask: str) -> None:
    workload = small(mask)
    peer = next(peer for peer in peers_of(workload, CPU) if peer.name == name)
    inputs = draw_inputs(workload, Run(1, 6), Inputs.RANDOM, 0, CPU)
    found = attention_function(workload, peer.attention)(inputs["qkv_raw"], inputs["b_qkv"])
    assert torch.allclose(found.double(), run_reference(workload, Run(1, 6), inputs)["merged"], atol=1e-5)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_layer_agrees_with_the_reference(activation: str) -> None:
    workload = small("strided", activation)
    weights = draw_weights(workload, 0, CPU)
    x = torch.randn(2, 19, 24, generator=torch.Generator().manual_seed(1))
    layer = layer_function(workload, peers_of(workload, CPU)[1].attention)
    assert torch.allclose(layer(x, weights).double(), layer_reference(workload, x, weights), atol=1e-5)


def test_every_peer_is_listed_once() -> None:
    compiled = ["compile naive", "compile SDPA", "compile Flex"]
    names = ["eager naive", "eager SDPA", *compiled, *(f"{name} max-autotune" for name in compiled)]
    assert [peer.name for peer in peers_of(small("causal"), CPU)] == names


def test_speedup_is_over_the_fastest_peer() -> None:
    result = torch.zeros(2)
    standing = Standing({"ours": [2.0], "a": [8.0, 9.0, 7.0], "b": [5.0]}, {"c": "out of memory"}, {"ours": result})
    row = row_of(standing, Verdict(True, "", 0.5, 1.0), 0.25)
    assert row["speedup"] == 2.5
    assert row["peers"] == {"a": 8.0, "b": 5.0}
    assert row["max_error"] == 0.5
    columns, lines = table_of([row | {"mask": "dense", "batch": 1, "seq_len": 2}])
    assert columns[-4:] == ["a us", "b us", "c us", "speedup"]
    assert lines[0][-4:] == ["8.0", "5.0", "-", "2.50"]


def test_grids_make_workloads() -> None:
    for name, (batches, lengths, masks) in GRIDS.items():
        cells = grid_workloads(name, Workload())
        assert len(set(cells)) == len(batches) * len(lengths) * len(masks)
