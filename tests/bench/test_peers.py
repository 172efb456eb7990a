"""Peers compute what the reference computes; no GPU."""

import pytest
import torch

from atoffer_rl.bench.peers import (
    attention_function,
    attention_peers,
    encoder_peers,
    flex_options,
    layer_function,
)
from atoffer_rl.errors import AtofferError
from atoffer_rl.kernels.inputs import Inputs, draw_inputs, draw_weights
from atoffer_rl.kernels.reference import layer_reference, run_reference
from atoffer_rl.run import Run
from atoffer_rl.workload import Workload

CPU = torch.device("cpu")
SEQ_LEN = 19
MASKS = ["strided", "fixed", "longformer:window=4,global=1", "causal", "dense", "document:lengths=4/15"]


def small(mask: str, activation: str = "gelu") -> Workload:
    return Workload(2, SEQ_LEN, 3, 8, 40, 2, dtype="float32", mask=mask, activation=activation)


def names(workload: Workload) -> list[str]:
    return list(dict.fromkeys(peer.name for peer in attention_peers(workload, CPU)))


def peer_named(workload: Workload, name: str):
    return next(peer for peer in attention_peers(workload, CPU) if peer.name == name)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["eager naive", "SDPA math", "compile SDPA"])
def test_attention_agrees_with_the_reference(name: str, mask: str) -> None:
    workload = small(mask)
    inputs = draw_inputs(workload, Run(2, 6), Inputs.RANDOM, 0, CPU)
    function = attention_function(workload, peer_named(workload, name).make())
    found = function(inputs["qkv"])
    assert torch.allclose(found.double(), run_reference(workload, Run(2, 6), inputs)["merged"], atol=1e-5)


@pytest.mark.parametrize(("mask", "name"), [("causal", "SDPA flash is_causal"), ("dense", "SDPA flash")])
def test_flash_runs_where_no_mask_is_needed(mask: str, name: str) -> None:
    workload = small(mask)
    inputs = draw_inputs(workload, Run(2, 6), Inputs.RANDOM, 0, CPU)
    found = attention_function(workload, peer_named(workload, name).make())(inputs["qkv"])
    assert torch.allclose(found.double(), run_reference(workload, Run(2, 6), inputs)["merged"], atol=1e-5)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_layer_agrees_with_the_reference(activation: str) -> None:
    workload = small("strided", activation)
    weights = draw_weights(workload, 0, CPU)
    x = torch.randn(2, SEQ_LEN, 24, generator=torch.Generator().manual_seed(1))
    layer = layer_function(workload, encoder_peers(workload, CPU)[1].make())
    assert torch.allclose(layer(x, weights).double(), layer_reference(workload, x, weights), atol=1e-5)


def test_every_encoder_peer_is_listed_once() -> None:
    compiled = ["compile naive", "compile SDPA", "compile Flex"]
    expected = ["eager naive", "eager SDPA", *compiled, *(f"{name} max-autotune" for name in compiled)]
    assert [peer.name for peer in encoder_peers(small("causal"), CPU)] == expected


def test_every_attention_peer_is_listed() -> None:
    backends = [f"SDPA {name}" for name in ("flash", "efficient", "cuDNN", "math")]
    others = ["compile SDPA", "xFormers", "FlashInfer", "compile naive", "eager naive"]
    assert names(small("strided")) == ["Flex 128", "Flex 64", *backends, *others]
    assert set(names(small("causal"))) - set(names(small("strided"))) == {
        "SDPA flash is_causal",
        "SDPA cuDNN is_causal",
    }


def test_flash_names_its_reason() -> None:
    with pytest.raises(AtofferError, match="takes no mask"):
        peer_named(small("strided"), "SDPA flash").make()


@pytest.mark.parametrize("block", [128, 64])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("head_dim", "seq_len"), [(64, 64), (64, 256), (128, 256), (32, 4096)])
def test_flex_is_tried_with_tiles_that_divide_its_blocks(block: int, dtype: str, head_dim: int, seq_len: int) -> None:
    options = flex_options(Workload(1, seq_len, 2, head_dim, dtype=dtype), block)
    assert len({tuple(option.items()) for option in options}) == len(options)
    assert options
    assert all(block % option.get("BLOCK_M", 1) == 0 == block % option["BLOCK_N"] for option in options)
    decoding = [option for option in options if "FORCE_USE_FLEX_ATTENTION" not in option]
    assert bool(decoding) == (seq_len < 128)


@pytest.mark.parametrize("mask", MASKS)
def test_flex_builds_its_blocks(mask: str) -> None:
    for name in ("Flex 128", "Flex 64"):
        assert callable(peer_named(small(mask), name).make())


@pytest.mark.parametrize("mask", ["strided", "bigbird", "document:lengths=50/90", "dense"])
@pytest.mark.parametrize("name", ["Flex 128", "Flex 64", "compile SDPA", "compile naive"])
def test_what_is_compiled_is_traced_whole_and_right(name: str, mask: str) -> None:
    workload = Workload(2, 140, 2, 16, 40, dtype="float32", mask=mask)
    inputs = draw_inputs(workload, Run(2, 6), Inputs.RANDOM, 0, CPU)
    function = attention_function(workload, peer_named(workload, name).make())
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(function, backend="eager", dynamic=False, fullgraph=True)(inputs["qkv"])
    assert torch.allclose(found.double(), run_reference(workload, Run(2, 6), inputs)["merged"], atol=1e-5)
