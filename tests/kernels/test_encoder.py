"""Whole forwards: where tensors lie, on the CPU with true segments; random schemes on a GPU."""

import random

import pytest
import torch

from atoffer_rl.errors import SchemeError
from atoffer_rl.kernels.encoder import CompiledEncoder, addresses, compile_encoder
from atoffer_rl.kernels.inputs import Inputs, draw_inputs, draw_weights, typical_lengths
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.packing import sequence_tensors, without_padding
from atoffer_rl.kernels.reference import Precision, encoder_reference
from atoffer_rl.kernels.verify import compare
from atoffer_rl.liveness import plan_buffers
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme


class HostArena:
    """Host memory full of NaN."""

    def __init__(self, size):
        self.memory = torch.full((size + 256,), 0xFF, dtype=torch.uint8)
        self.pointer = -(-self.memory.data_ptr() // 256) * 256


def scheme_of(runs):
    return Scheme(tuple(Choice(run, "honest") for run in runs))


UNFUSED = tuple(Run(i, i) for i in range(15))
WHOLE = (Run(0, 14),)
MIXED = (Run(0, 1), Run(2, 3), Run(4, 6), Run(7, 8), Run(9, 11), Run(12, 13), Run(14, 14))


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("runs", [UNFUSED, WHOLE, MIXED])
def test_layers_follow_each_other_in_one_arena(runs, layers, honest, small_workload):
    workload = small_workload(dtype="float32", layers=layers)
    weights = [draw_weights(workload, seed, "cpu") for seed in range(layers)]
    x = draw_inputs(workload, Run(0, 0), Inputs.RANDOM, 0, "cpu")["x"]
    before, out = x.clone(), torch.full_like(x, torch.nan)
    arena = HostArena(plan_buffers(workload, runs).peak_bytes)
    encoder = CompiledEncoder(workload, scheme_of(runs), [honest(workload, run) for run in runs], arena)
    encoder.forward(x.data_ptr(), [addresses(one) for one in weights], out.data_ptr(), 0)
    torch.testing.assert_close(out.double(), encoder_reference(workload, x, weights), rtol=1e-4, atol=1e-4)
    assert torch.equal(x, before)


@pytest.mark.parametrize("runs", [UNFUSED, MIXED])
def test_lengths_reach_every_layer(runs, honest, small_workload):
    workload = small_workload(dtype="float32", layers=2, lengths="list:7/21")
    weights = [draw_weights(workload, seed, "cpu") for seed in range(2)]
    x, lengths = draw_inputs(workload, Run(0, 0), Inputs.RANDOM, 0, "cpu")["x"], typical_lengths(workload, "cpu")
    out = torch.full_like(x, torch.nan)
    segments = [honest(workload, run) for run in runs]
    encoder = CompiledEncoder(workload, scheme_of(runs), segments, HostArena(plan_buffers(workload, runs).peak_bytes))
    named = [addresses(one) for one in weights]
    encoder.forward(x.data_ptr(), named, out.data_ptr(), 0, lengths.data_ptr())
    alone = small_workload(dtype="float32", layers=2, batch=1, seq_len=7, mask=workload.mask)
    torch.testing.assert_close(out[:1, :7].double(), encoder_reference(alone, x[:1, :7], weights), rtol=1e-4, atol=1e-4)
    whole = small_workload(dtype="float32", layers=2, batch=1)
    torch.testing.assert_close(out[1:].double(), encoder_reference(whole, x[1:], weights), rtol=1e-4, atol=1e-4)
    with pytest.raises(SchemeError, match="lengths are list:7/21: pass lengths"):
        encoder.forward(x.data_ptr(), named, out.data_ptr(), 0)


FUSED = (Run(0, 0), Run(1, 6), Run(7, 8), Run(9, 14))


def test_offsets_reach_every_layer(honest, small_workload):
    workload = small_workload(dtype="float32", layers=2, lengths="list:7/13", packed=True)
    weights = [draw_weights(workload, seed, "cpu") for seed in range(2)]
    x = draw_inputs(workload, Run(0, 0), Inputs.RANDOM, 0, "cpu")["x"]
    sequences = sequence_tensors(workload, typical_lengths(workload, "cpu"))
    out = torch.full_like(x, torch.nan)
    segments = [honest(workload, run) for run in FUSED]
    encoder = CompiledEncoder(workload, scheme_of(FUSED), segments, HostArena(plan_buffers(workload, FUSED).peak_bytes))
    arguments = (x.data_ptr(), [addresses(one) for one in weights], out.data_ptr(), 0)
    encoder.forward(*arguments, **addresses(sequences))
    rows, found = x.view(1, -1, workload.width), out.view(1, -1, workload.width).double()
    for part in (slice(0, 7), slice(7, 20)):
        length = part.stop - part.start
        alone = small_workload(dtype="float32", layers=2, batch=1, seq_len=length, mask=workload.mask)
        expected = encoder_reference(alone, rows[:, part], weights)
        torch.testing.assert_close(found[:, part], expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(SchemeError, match="offsets are those of packed sequences"):
        encoder.forward(*arguments, sequences["lengths"].data_ptr())


def test_weights_of_another_depth_are_refused(small_workload):
    encoder = CompiledEncoder(small_workload(layers=2), scheme_of(WHOLE), [], HostArena(0))
    with pytest.raises(SchemeError, match="2 layers"):
        encoder.forward(0, [{}], 0, 0)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("lengths", "packed"), [("full", False), ("uniform:shortest=0", False), ("uniform:shortest=0", True)]
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_random_schemes_are_right_and_replay_from_a_graph(dtype, lengths, packed, small_workload):
    from atoffer_rl.errors import LaunchError

    workload = small_workload(dtype=dtype, seq_len=100, layers=3, lengths=lengths, packed=packed)
    source, drawn = random.Random(dtype), typical_lengths(workload, "cuda") if workload.padded else None
    sequences = {} if drawn is None else sequence_tensors(workload, drawn)
    weights = [draw_weights(workload, seed, "cuda") for seed in range(3)]
    x = draw_inputs(workload, Run(0, 0), Inputs.RANDOM, 9, "cuda")["x"]
    exact = encoder_reference(workload, x, weights, lengths=drawn)
    eager = encoder_reference(workload, x, weights, Precision.EAGER, drawn)
    stream, tried = torch.cuda.Stream(), 0

    def kept(rows):  # what lies beyond the sequences is anything
        return rows if drawn is None else without_padding(workload, rows, drawn)

    for _ in range(8):
        scheme = LegalSpace(workload).draw(source)
        try:
            encoder = compile_encoder(workload, scheme)
        except LaunchError:  # a proposal that the library does not have for this shape
            continue
        tried += 1
        out = torch.full_like(x, torch.nan)
        torch.cuda.synchronize()
        arguments = (x.data_ptr(), [addresses(one) for one in weights], out.data_ptr(), stream.cuda_stream)
        encoder.forward(*arguments, **addresses(sequences))
        stream.synchronize()
        verdict = compare(kept(out), kept(exact), kept(eager), workload.element.epsilon)
        assert verdict.passed, f"{scheme.choices}: {verdict.reason}"
        graph, first = torch.cuda.CUDAGraph(), kept(out).clone()
        with torch.cuda.graph(graph, stream=stream):
            encoder.forward(*arguments, **addresses(sequences))
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(kept(out), first)
    assert tried
