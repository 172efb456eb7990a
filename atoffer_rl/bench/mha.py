"""`bench mha`: sparse attention from the fused QKV projection to merged heads, ours beside PyTorch's."""

from typing import Any

import torch

from atoffer_rl.bench.contest import OURS, Contender, Launch, hold, row_of
from atoffer_rl.bench.peers import Peer, attention_function, peers_of, prepared
from atoffer_rl.errors import LaunchError
from atoffer_rl.kernels.encoder import addresses
from atoffer_rl.kernels.launch import load_choice
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.machine import current_device
from atoffer_rl.kernels.measurers.protocol import Measurer
from atoffer_rl.kernels.reference import Inputs, Precision, draw_inputs, run_reference
from atoffer_rl.kernels.verify import compare
from atoffer_rl.roofline import memory_us
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.table_summary import latencies
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.trial import SegmentRequest
from atoffer_rl.workload import Workload

ATTENTION = Run(1, 6)
RESULT = "merged"
LAUNCHES = 20
SMALLEST_FLOOR_US = 2.0
GRIDS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]] = {
    "paper": ((1, 8, 16), (64, 128, 256, 384, 512, 768, 1024), ("strided", "fixed")),
    "small": ((1, 16), (128, 256), ("strided", "fixed")),
}


def grid_workloads(name: str, workload: Workload) -> list[Workload]:
    """The cells of grid `name`, with everything but batch, sequence and mask taken from `workload`."""
    batches, lengths, masks = GRIDS[name]
    fields = workload.to_json()
    return [
        Workload(**fields | {"batch": batch, "seq_len": seq_len, "mask": mask})
        for mask in masks
        for batch in batches
        for seq_len in lengths
    ]


def bench_mha(workload: Workload, measurer: Measurer, replays: int) -> dict[str, Any]:
    """One row: our fastest choice for operators 1 to 6, found by measuring them all, and every peer.

    Raises:
        LaunchError: If none of our choices is right here.
    """
    device = torch.device("cuda")
    choice = _fastest(workload, measurer)
    inputs = draw_inputs(workload, ATTENTION, Inputs.RANDOM, seed=1, device=device)
    contenders = [Contender(OURS, lambda: _ours(workload, choice, inputs))]
    contenders += [_peer(workload, peer, inputs) for peer in peers_of(workload, device)]
    standing = hold(contenders, LAUNCHES, replays)
    if OURS in standing.errors:
        raise LaunchError(standing.errors[OURS])
    exact = run_reference(workload, ATTENTION, inputs)[RESULT]
    eager = run_reference(workload, ATTENTION, inputs, Precision.EAGER)[RESULT]
    verdict = compare(standing.results[OURS], exact, eager, workload.element.epsilon)
    return _identity(workload, choice) | row_of(standing, verdict, _floor_us(workload))


def _fastest(workload: Workload, measurer: Measurer) -> Choice:
    choices = LegalSpace(workload, measurer.device).choices(ATTENTION)
    trials = measurer.measure([SegmentRequest(workload, choice) for choice in choices])
    latencies_us = latencies(dict(zip(choices, trials, strict=True)))
    if not latencies_us:
        reasons = "; ".join(dict.fromkeys(f"{trial.status.value}: {trial.reason}" for trial in trials))
        raise LaunchError(f"no attention kernel is right here ({reasons or 'none is legal'})")
    return min(latencies_us, key=lambda choice: latencies_us[choice])


def _floor_us(workload: Workload) -> float:
    """QKV read once and the output written once; never under what a launch takes."""
    tensors = layer_tensors(workload)
    moved = tensors["qkv_raw"].size_bytes + tensors[RESULT].size_bytes
    return max(SMALLEST_FLOOR_US, memory_us(moved, current_device()))


def _identity(workload: Workload, choice: Choice) -> dict[str, Any]:
    fields = ("mask", "batch", "seq_len", "heads", "head_dim", "dtype")
    return {name: getattr(workload, name) for name in fields} | {"ours_choice": str(choice)}


def _ours(workload: Workload, choice: Choice, inputs: dict[str, torch.Tensor]) -> Launch:
    segment = load_choice(workload, choice)
    out = torch.empty(layer_tensors(workload)[RESULT].shape, dtype=inputs["qkv_raw"].dtype, device="cuda")
    pointers = addresses({**inputs, RESULT: out})

    def launch() -> torch.Tensor:
        segment.launch(pointers, torch.cuda.current_stream().cuda_stream)
        return out

    return launch


def _peer(workload: Workload, peer: Peer, inputs: dict[str, torch.Tensor]) -> Contender:
    def prepare() -> Launch:
        function = prepared(attention_function(workload, peer.attention), peer)
        return lambda: function(inputs["qkv_raw"], inputs["b_qkv"])

    return Contender(peer.name, prepare)
