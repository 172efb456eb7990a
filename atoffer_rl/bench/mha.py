"""One cell of `bench mha`: sparse attention from the fused QKV projection to merged heads, ours beside the peers.

Everyone is given the projection with its bias added, as a product's epilogue leaves it, in memory that they may view
as they like.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from atoffer_rl.bench.cells import ATTENTION, Cell, identity_of
from atoffer_rl.bench.contest import OURS, Contender, Contest, Launch, row_of
from atoffer_rl.bench.graph_timing import GRAPH_LAUNCHES
from atoffer_rl.bench.memory import MemoryShare
from atoffer_rl.bench.peers import Peer, attention_function, attention_peers, prepared
from atoffer_rl.errors import LaunchError
from atoffer_rl.kernels.encoder import addresses
from atoffer_rl.kernels.inputs import Inputs, draw_inputs
from atoffer_rl.kernels.launch import Launchable, load_choice
from atoffer_rl.kernels.machine import current_device
from atoffer_rl.kernels.reference import Precision, batch_chunks, run_reference
from atoffer_rl.kernels.verifier import draws_of
from atoffer_rl.kernels.verify import SEED_STRIDE, Comparison, Verdict, differences
from atoffer_rl.roofline import memory_us, run_bytes
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.workload import Workload

RESULT = "merged"
SEED = 0
SMALLEST_FLOOR_US = 2.0
PEAKED_ENTRIES = slice(0, 2)


class CellBench:
    """Ours verified, and every contender of a cell built, run and captured; to be timed when the GPU is free.

    Args:
        cell: Which.
        share: GPU memory that it may take.

    Raises:
        CompileError: If one of our choices does not compile.
        LaunchError: If one of our choices does not run, or gives a wrong result.
        MemoryTaken: If a contender finds no memory because other processes have taken of the share.
    """

    def __init__(self, cell: Cell, share: MemoryShare) -> None:
        self._cell = cell
        workload, device = cell.workload, torch.device("cuda", torch.cuda.current_device())
        share.keep_to()
        self._segments = {str(choice): load_choice(workload, choice) for choice in cell.fastest}
        self._verdicts = self._verified(Inputs.RANDOM, batch_chunks(workload))
        self._peaked = self._verified(Inputs.PEAKED, _peaked_chunks(workload))
        torch.cuda.empty_cache()
        inputs = draw_inputs(workload, ATTENTION, Inputs.RANDOM, SEED, device)
        self._out = _result_tensor(workload, inputs)
        contenders = [_ours(name, segment, inputs, self._out) for name, segment in self._segments.items()]
        contenders += [_peer(workload, peer, inputs["qkv"]) for peer in attention_peers(workload, device)]
        self._contest = Contest(contenders, GRAPH_LAUNCHES, share)

    def _verified(self, kind: Inputs, chunks: Iterable[slice]) -> dict[str, Verdict]:
        workload = self._cell.workload
        inputs = draw_inputs(workload, ATTENTION, kind, SEED, torch.device("cuda", torch.cuda.current_device()))
        outs = []
        for name, segment in self._segments.items():
            out = _result_tensor(workload, inputs).fill_(float("nan"))
            outs.append(_ours(name, segment, inputs, out).prepare()())
        verdicts = judge(workload, inputs, outs, chunks, self._eager_error_elsewhere(kind))
        for name, verdict in zip(self._segments, verdicts, strict=True):
            if not verdict.passed:
                raise LaunchError(f"ours, {name}, is wrong on {kind.value} inputs: {verdict.reason}")
        return dict(zip(self._segments, verdicts, strict=True))

    def _eager_error_elsewhere(self, kind: Inputs) -> float:
        """Over few elements eager's largest error is a matter of luck: what it is on more draws."""
        workload = self._cell.workload
        worst = 0.0
        for draw in range(1, draws_of(workload, ATTENTION)):
            inputs = draw_inputs(workload, ATTENTION, kind, SEED + draw * SEED_STRIDE, "cuda")
            eager = run_reference(workload, ATTENTION, inputs, Precision.EAGER)[RESULT]
            (verdict,) = judge(workload, inputs, [eager], batch_chunks(workload))
            worst = max(worst, verdict.max_error)
        return worst

    def time(self, replays: int) -> dict[str, Any]:
        """The cell's row."""
        standing = self._contest.time(replays)
        name = standing.options[OURS]
        ours = {"ours_choice": name, "ours_source": self._cell.choices_hash}
        shared = row_of(standing, self._verdicts[name], attention_floor_us(self._cell.workload))
        peaked = {"peaked_error": self._peaked[name].max_error, "peaked_budget": self._peaked[name].error_budget}
        memory = {"allowed_gb": round(self._cell.allowed_bytes / 1e9, 1)}
        return identity_of(self._cell.workload) | ours | shared | peaked | memory


def judge(
    workload: Workload,
    inputs: Mapping[str, torch.Tensor],
    outs: Sequence[torch.Tensor],
    chunks: Iterable[slice],
    eager_error: float = 0.0,
) -> list[Verdict]:
    """Whether each of `outs` is right, for so many sequences of the batch at a time as `chunks` says.

    Args:
        workload: Shapes, dtype and mask.
        inputs: Of the attention.
        outs: What was computed, by one kernel or several.
        chunks: Which sequences to compare.
        eager_error: What eager low precision is known to be off by on other inputs of the kind.
    """
    found: list[list[torch.Tensor]] = [[] for _ in outs]
    for entries in chunks:
        exact = run_reference(workload, ATTENTION, inputs, Precision.EXACT, entries)[RESULT]
        eager = run_reference(workload, ATTENTION, inputs, Precision.EAGER, entries)[RESULT]
        for apart, out in zip(found, outs, strict=True):
            apart.append(differences(out[entries], exact, eager))
    return [_verdict(workload, torch.stack(apart).amax(dim=0), eager_error) for apart in found]


def _verdict(workload: Workload, apart: torch.Tensor, eager_error: float) -> Verdict:
    comparison = Comparison(*apart.tolist())
    comparison = replace(comparison, eager_error=max(comparison.eager_error, eager_error))
    return comparison.verdict(workload.element.epsilon)


def attention_floor_us(workload: Workload) -> float:
    """QKV read once and the output written once; at least `SMALLEST_FLOOR_US`, about what a small kernel takes."""
    return max(SMALLEST_FLOOR_US, memory_us(run_bytes(workload, ATTENTION), current_device()))


def _peaked_chunks(workload: Workload) -> list[slice]:
    """The first sequences alone, for the time it takes: measuring has judged all of them."""
    first = range(workload.batch)[PEAKED_ENTRIES]
    return [slice(entry, entry + 1) for entry in first]


def _result_tensor(workload: Workload, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    qkv = inputs["qkv"]
    return torch.empty(layer_tensors(workload)[RESULT].shape, dtype=qkv.dtype, device=qkv.device)


def _ours(name: str, segment: Launchable, inputs: Mapping[str, torch.Tensor], out: torch.Tensor) -> Contender:
    pointers = addresses({**inputs, RESULT: out})

    def launch() -> torch.Tensor:
        segment.launch(pointers, torch.cuda.current_stream().cuda_stream)
        return out

    return Contender(OURS, lambda: launch, name)


def _peer(workload: Workload, peer: Peer, qkv: torch.Tensor) -> Contender:
    def prepare() -> Launch:
        function = prepared(attention_function(workload, peer.make()), peer)
        return lambda: function(qkv)

    return Contender(peer.name, prepare, peer.option)
