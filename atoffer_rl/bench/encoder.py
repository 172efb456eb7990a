"""`bench encoder`: the whole forward, ours under a scheme, beside eager and compiled PyTorch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from atoffer_rl.bench.cells import identity_of, programs_hash
from atoffer_rl.bench.contest import OURS, Contender, Contest, Launch, row_of
from atoffer_rl.bench.grids import BEYOND_ATTENTION
from atoffer_rl.bench.peers import Peer, Weights, encoder_peers, layer_function, prepared
from atoffer_rl.errors import LaunchError
from atoffer_rl.kernels.encoder import addresses, compile_encoder
from atoffer_rl.kernels.inputs import draw_weights
from atoffer_rl.kernels.machine import current_device
from atoffer_rl.kernels.reference import Precision, encoder_reference
from atoffer_rl.kernels.torch_dtypes import TORCH_DTYPES
from atoffer_rl.kernels.verify import Verdict, compare
from atoffer_rl.operators import LAYER_INPUT, WHOLE_LAYER
from atoffer_rl.roofline import memory_us, run_bytes
from atoffer_rl.scheme import Scheme
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.workload import Workload


def bench_encoder(workload: Workload, scheme: Scheme, replays: int) -> dict[str, Any]:
    """One row: our forward under `scheme` and every peer's, on the same inputs, in one run.

    Raises:
        CompileError: If our scheme does not compile.
        LaunchError: If our scheme does not run or gives a wrong result, or the GPU's memory does not suffice.
    """
    try:
        return _bench(workload, scheme, replays)
    except torch.OutOfMemoryError as error:
        raise LaunchError("not enough GPU memory: reduce --layers, --batch, --seq-len or --ffn-dim") from error


def _bench(workload: Workload, scheme: Scheme, replays: int) -> dict[str, Any]:
    device = torch.device("cuda")
    weights = [draw_weights(workload, seed, device) for seed in range(workload.layers)]
    shape = layer_tensors(workload)[LAYER_INPUT].shape
    source = torch.Generator(device).manual_seed(workload.layers)
    x = torch.randn(shape, generator=source, device=device).to(TORCH_DTYPES[workload.element])
    launch = _ours(workload, scheme, x, weights)
    verdict = verified(workload, launch, x, weights)
    contenders = [Contender(OURS, lambda: launch)]
    contenders += [_peer(workload, peer, x, weights) for peer in encoder_peers(workload, device)]
    contest = Contest(contenders, launches=(1,))
    floor_us = memory_us(workload.layers * run_bytes(workload, WHOLE_LAYER), current_device())
    named = encoder_identity(workload) | {"ours_scheme": scheme.to_json()}
    named |= {"ours_source": programs_hash(workload, scheme.choices)}
    return named | row_of(contest.time(replays), verdict, floor_us)


def verified(
    workload: Workload, launch: Launch, x: torch.Tensor, weights: Sequence[dict[str, torch.Tensor]]
) -> Verdict:
    """The verdict on our forward.

    Args:
        workload: Shapes, dtype and mask.
        launch: Ours, on `x` and `weights`.
        x: What the first layer reads.
        weights: A layer's each.

    Raises:
        LaunchError: If it gives a wrong result.
    """
    exact = encoder_reference(workload, x, weights)
    eager = encoder_reference(workload, x, weights, Precision.EAGER)
    verdict = compare(launch(), exact, eager, workload.element.epsilon)
    if not verdict.passed:
        raise LaunchError(f"ours is wrong: {verdict.reason}")
    return verdict


def encoder_identity(workload: Workload) -> dict[str, Any]:
    """The fields of a row that tell its workload from others."""
    return identity_of(workload) | {name: getattr(workload, name) for name in BEYOND_ATTENTION}


def _ours(workload: Workload, scheme: Scheme, x: torch.Tensor, weights: list[dict[str, torch.Tensor]]) -> Launch:
    encoder = compile_encoder(workload, scheme)
    out = torch.full_like(x, float("nan"))  # what is not written shows
    pointers = [addresses(layer) for layer in weights]

    def launch() -> torch.Tensor:
        encoder.forward(x.data_ptr(), pointers, out.data_ptr(), torch.cuda.current_stream().cuda_stream)
        return out

    return launch


def _peer(workload: Workload, peer: Peer, x: torch.Tensor, weights: list[dict[str, torch.Tensor]]) -> Contender:
    def prepare() -> Launch:
        layer = prepared(layer_function(workload, peer.make()), peer)

        def launch() -> torch.Tensor:
            return _forward(layer, x, weights)

        return launch

    return Contender(peer.name, prepare)


def _forward(
    layer: Callable[[torch.Tensor, Weights], torch.Tensor], x: torch.Tensor, weights: Sequence[Weights]
) -> torch.Tensor:
    for named in weights:
        x = layer(x, named)
    return x
