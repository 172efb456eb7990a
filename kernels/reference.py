"""The layer in plain torch: what every operator means, exactly and in eager low precision, and inputs to try it on.

Import this module only where a reference is computed: it loads torch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from math import log2, sqrt
from typing import TypeAlias
from zlib import crc32

import torch
from torch import Tensor
from torch.nn.functional import gelu

from atoffer_rl.dtype import DType
from atoffer_rl.masks import Mask
from atoffer_rl.operators import (
    LAYER_INPUT,
    LAYER_OUTPUT,
    WEIGHTS,
    WHOLE_LAYER,
    run_activations,
    run_operators,
    run_results,
    run_weights,
)
from atoffer_rl.run import Run
from atoffer_rl.tensors import LENGTHS, OFFSETS, layer_tensors, reads_lengths, run_inputs
from atoffer_rl.tensors import Tensor as Description
from atoffer_rl.workload import Workload

TORCH_DTYPES = {
    DType.FLOAT32: torch.float32,
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
    DType.INT32: torch.int32,
}
EVERY_ENTRY = slice(None)
ATTENTION = Run(2, 5)
ATTENTION_SCORES = 2**29
"""Scores that a reference of attention holds at a time, where they are no result: 4 GB in float64."""
CODES_AT_ONCE = 2**26

Formula: TypeAlias = Callable[..., Tensor]


class Inputs(Enum):
    """What a run is tried on.

    `RANDOM` is normally distributed. `PEAKED` scales logits by 100, and elsewhere gives each row one value 100 times
    the others. `CODED` makes every value a code of its own place, small multiples of 1/16 whose products sum
    without rounding, under near-uniform attention: work that is skipped or lands elsewhere changes the result.
    """

    RANDOM = "random"
    PEAKED = "peaked"
    CODED = "coded"


PEAK = 100.0


class Precision(Enum):
    """How a reference computes.

    `EXACT` upcasts its inputs and stays in float64. `EAGER` multiplies in the workload's format as torch does on
    that device, does everything else (and the scores) in float32, and rounds each operator's result to its stored
    format.
    """

    EXACT = "exact"
    EAGER = "eager"


def run_reference(
    workload: Workload,
    run: Run,
    inputs: Mapping[str, Tensor],
    precision: Precision = Precision.EXACT,
    entries: slice = EVERY_ENTRY,
) -> dict[str, Tensor]:
    """What `run` must store, computed in plain torch on the inputs' device.

    Args:
        workload: Shapes, mask, activation and LayerNorm epsilon.
        run: The operators to compute.
        inputs: The run's inputs (`tensors.run_inputs`) and weights by name, shaped as `tensors.layer_tensors` says.
        precision: The truth in float64, or eager low precision.
        entries: Which sequences of the batch to compute; all of them where the run reads packed sequences.

    Returns:
        `operators.run_results(run)` by name, for those entries: float64 if exact, else in stored formats. Zeros in
        rows that belong to no packed sequence.
    """
    if reads_offsets(workload, run):
        return _packed_reference(workload, run, inputs, precision)
    values = {name: inputs[name][entries] for name in run_inputs(workload, run)}
    values |= {name: inputs[name] for name in run_weights(run)}
    if precision is Precision.EXACT:
        values = {name: value if name == LENGTHS else value.double() for name, value in values.items()}
    for part in _parts(run):
        compute = _attention if part == ATTENTION else _operators
        values |= compute(workload, part, values, precision, entries)
    return {name: values[name] for name in run_results(run)}


def _packed_reference(
    workload: Workload, run: Run, inputs: Mapping[str, Tensor], precision: Precision
) -> dict[str, Tensor]:
    """As `run_reference`: unpacks, computes sequence by sequence, packs."""
    padded, apart = unpacked_workload(workload), unpacked_tensors(workload, run, inputs)
    parts = [run_reference(padded, run, apart, precision, entries) for entries in batch_chunks(padded)]
    lengths = inputs[LENGTHS]
    return {name: pack_rows(workload, torch.cat([part[name] for part in parts]), lengths) for name in run_results(run)}


def _parts(run: Run) -> tuple[Run, ...]:
    """`run`, cut before and after attention if it contains all of it."""
    if ATTENTION.first not in run or ATTENTION.last not in run:
        return (run,)
    parts = (Run(run.first, ATTENTION.first - 1), ATTENTION, Run(ATTENTION.last + 1, run.last))
    return tuple(part for part in parts if part.first <= part.last)


def _operators(
    workload: Workload, run: Run, values: Mapping[str, Tensor], precision: Precision, entries: slice
) -> dict[str, Tensor]:
    """What `run` must store, from all it reads; nothing is held longer than it is needed."""
    stored, live = layer_tensors(workload), dict(values)
    for operator in run_operators(run):
        alone = Run(operator.index, operator.index)
        arguments = [live[name] for name in run_inputs(workload, alone) + operator.weights]
        result = _FORMULAS[operator.name](workload, entries, *arguments)
        if precision is Precision.EAGER:
            result = result.to(TORCH_DTYPES[stored[operator.result].dtype])
        live[operator.result] = result
        rest = Run(operator.index + 1, run.last)
        needed = {*run_inputs(workload, rest), *run_weights(rest), *run_results(run)}
        live = {name: value for name, value in live.items() if name in needed}
    return live


def _attention(
    workload: Workload, run: Run, values: Mapping[str, Tensor], precision: Precision, entries: slice
) -> dict[str, Tensor]:
    """As `_operators` for `ATTENTION`, as many heads at a time as `ATTENTION_SCORES` allows."""
    w = workload
    by_head = values["qkv"].view(-1, w.seq_len, 3, w.heads, w.head_dim)
    shared = {name: values[name] for name in run_inputs(w, run)}
    heads = max(1, ATTENTION_SCORES // (len(by_head) * w.seq_len**2))
    contexts = [
        _operators(replace(w, heads=part.shape[3]), run, shared | {"qkv": part.flatten(2)}, precision, entries)[
            "context"
        ]
        for part in by_head.split(heads, dim=3)
    ]
    return {"context": torch.cat(contexts, dim=1)}


def layer_reference(
    workload: Workload,
    x: Tensor,
    weights: Mapping[str, Tensor],
    precision: Precision = Precision.EXACT,
    lengths: Tensor | None = None,
) -> Tensor:
    """One layer's output (batch, seq_len, width) for the input `x` of that shape, and `lengths` if it is padded."""
    inputs = {LAYER_INPUT: x, **weights} | ({} if lengths is None else sequence_tensors(workload, lengths))
    if workload.packed:
        return run_reference(workload, WHOLE_LAYER, inputs, precision)[LAYER_OUTPUT]
    parts = [
        run_reference(workload, WHOLE_LAYER, inputs, precision, entries)[LAYER_OUTPUT]
        for entries in batch_chunks(workload)
    ]
    return torch.cat(parts)


def encoder_reference(
    workload: Workload,
    x: Tensor,
    layer_weights: Sequence[Mapping[str, Tensor]],
    precision: Precision = Precision.EXACT,
    lengths: Tensor | None = None,
) -> Tensor:
    """The output of as many layers as there are weight sets; what `valid_rows` leaves out has no meaning."""
    for weights in layer_weights:
        x = layer_reference(workload, x, weights, precision, lengths)
    return x


def batch_chunks(workload: Workload, scores_at_once: int = 2**26) -> Iterable[slice]:
    """Slices of the batch whose score matrices have at most `scores_at_once` elements (at least one sequence)."""
    step = max(1, scores_at_once // (workload.heads * workload.seq_len**2))
    return [slice(first, min(first + step, workload.batch)) for first in range(0, workload.batch, step)]


@lru_cache(maxsize=4)
def kept_pairs(mask: Mask, seq_len: int, device: torch.device) -> Tensor:
    """The mask as a boolean tensor (1 or batch, 1, seq_len, seq_len) on `device`."""
    return torch.tensor(mask.keep(seq_len), device=device)[:, None]


def apply_mask(workload: Workload, entries: slice, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
    """`scores` with -inf where the mask keeps nothing, and in rows and columns beyond `lengths` (entries,)."""
    keep = kept_pairs(workload.mask_spec, workload.seq_len, scores.device)
    keep = keep[entries] if len(keep) > 1 else keep
    if lengths is not None:
        valid = valid_rows(workload, lengths)[:, None]
        keep = keep & valid[..., None] & valid[..., None, :]
    return scores.masked_fill(~keep, float("-inf"))


def valid_rows(workload: Workload, lengths: Tensor) -> Tensor:
    """Which rows are tokens of sequences of `lengths` (batch,): a boolean tensor (batch, seq_len)."""
    if workload.packed:
        return (torch.arange(workload.rows, device=lengths.device) < lengths.sum()).view(-1, workload.seq_len)
    return torch.arange(workload.seq_len, device=lengths.device) < lengths[:, None]


def unpacked_workload(workload: Workload) -> Workload:
    """The same workload with every sequence's rows at a multiple of `seq_len`."""
    return replace(workload, packed=False)


def reads_offsets(workload: Workload, run: Run) -> bool:
    """Whether `run` reads rows of packed sequences as such: elsewhere, rows are rows."""
    return workload.packed and reads_lengths(workload, run)


def unpacked_tensors(workload: Workload, run: Run, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` that `run` reads and stores, as its `unpacked_workload` has them."""
    if not reads_offsets(workload, run):
        return dict(tensors)
    lengths, rows = tensors[LENGTHS], {*run_activations(run), *run_results(run)}
    apart = {name: unpack_rows(workload, value, lengths) for name, value in tensors.items() if name in rows}
    return {name: value for name, value in tensors.items() if name != OFFSETS} | apart


def unpack_rows(workload: Workload, packed: Tensor, lengths: Tensor) -> Tensor:
    """`packed` rows (batch, seq_len, channels) with each sequence's at a multiple of `seq_len`, zeros between."""
    first = sequence_tensors(workload, lengths)[OFFSETS]
    places = first[:, None] + torch.arange(workload.seq_len, device=lengths.device)
    apart = packed.flatten(0, 1)[places.clamp(max=workload.rows - 1)]
    return without_padding(unpacked_workload(workload), apart, lengths)


def pack_rows(workload: Workload, rows: Tensor, lengths: Tensor) -> Tensor:
    """What `unpack_rows` unpacked; zeros in rows that belong to no sequence."""
    packed = torch.zeros_like(rows)
    packed[valid_rows(workload, lengths)] = rows[valid_rows(unpacked_workload(workload), lengths)]
    return packed


def sequence_tensors(workload: Workload, lengths: Tensor) -> dict[str, Tensor]:
    """`tensors.sequence_inputs` of a padded workload, for sequences of `lengths` (batch,)."""
    offsets = (lengths.cumsum(0) - lengths).int()
    return {LENGTHS: lengths} | ({OFFSETS: offsets} if workload.packed else {})


def without_padding(workload: Workload, rows: Tensor, lengths: Tensor) -> Tensor:
    """`rows` (batch, seq_len, channels) with zeros in those that are no tokens of sequences of `lengths` (batch,)."""
    return torch.where(valid_rows(workload, lengths)[..., None], rows, 0.0)


def softmax_rows(scores: Tensor) -> Tensor:
    """Softmax over the last axis; a row of all -inf gives zeros."""
    peak = scores.amax(-1, keepdim=True)
    powers = torch.exp(scores - torch.where(peak.isinf(), 0.0, peak))
    total = powers.sum(-1, keepdim=True)
    return powers / torch.where(total > 0, total, 1.0)


def _wide(tensor: Tensor) -> Tensor:
    """The tensor in the format that everything but products is computed in: float64 stays, all else is float32."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _heads(workload: Workload, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Views of q, k and v, each (batch, heads, seq_len, head_dim)."""
    w = workload
    query, key, value = qkv.view(-1, w.seq_len, 3, w.heads, w.head_dim).permute(2, 0, 3, 1, 4)
    return query, key, value


def _product(workload: Workload, entries: slice, rows: Tensor, weight: Tensor) -> Tensor:
    return rows @ weight.T


def _bias(workload: Workload, entries: slice, rows: Tensor, bias: Tensor) -> Tensor:
    return _wide(rows) + _wide(bias)


def _bias_residual(workload: Workload, entries: slice, rows: Tensor, residual: Tensor, bias: Tensor) -> Tensor:
    return _wide(rows) + _wide(bias) + _wide(residual)


def _scores(workload: Workload, entries: slice, qkv: Tensor) -> Tensor:
    query, key, _ = _heads(workload, qkv)
    return _wide(query) @ _wide(key).transpose(-1, -2) / sqrt(workload.head_dim)


def _softmax(workload: Workload, entries: slice, scores: Tensor) -> Tensor:
    return softmax_rows(scores)


def _context(workload: Workload, entries: slice, probs: Tensor, qkv: Tensor) -> Tensor:
    return probs @ _heads(workload, qkv)[2]


def _merge(workload: Workload, entries: slice, context: Tensor) -> Tensor:
    return context.transpose(1, 2).reshape(-1, workload.seq_len, workload.width)


def _layernorm(workload: Workload, entries: slice, rows: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    wide = _wide(rows)
    return torch.nn.functional.layer_norm(wide, wide.shape[-1:], _wide(gamma), _wide(beta), workload.epsilon)


def _bias_activation(workload: Workload, entries: slice, rows: Tensor, bias: Tensor) -> Tensor:
    total = _wide(rows) + _wide(bias)
    if workload.activation == "relu":
        return torch.relu(total)
    return gelu(total, approximate="tanh" if workload.activation == "gelu_tanh" else "none")


_FORMULAS: dict[str, Formula] = {
    "qkv_gemm": _product,
    "qkv_bias": _bias,
    "qk_gemm": _scores,
    "mask": apply_mask,
    "softmax": _softmax,
    "pv_gemm": _context,
    "merge_heads": _merge,
    "out_gemm": _product,
    "out_bias_residual": _bias_residual,
    "layernorm_1": _layernorm,
    "ffn1_gemm": _product,
    "ffn1_bias_act": _bias_activation,
    "ffn2_gemm": _product,
    "ffn2_bias_residual": _bias_residual,
    "layernorm_2": _layernorm,
}


def draw_inputs(workload: Workload, run: Run, kind: Inputs, seed: int, device: torch.device | str) -> dict[str, Tensor]:
    """Everything `run` reads, by name, in stored formats: a function of its arguments alone.

    Masked scores hold -inf where the mask drops; probabilities are the softmax of such scores. Lengths are drawn from
    the workload's distribution, extreme ones among them.
    """
    source = torch.Generator(device).manual_seed(2 * seed + 1)
    stored = layer_tensors(workload)
    lengths = _draw_lengths(workload, kind, seed, device) if workload.padded else None
    drawn = {name: _draw_activation(workload, stored[name], kind, source, lengths) for name in run_activations(run)}
    drawn |= {name: _draw_weight(stored[name], kind, source) for name in run_weights(run)}
    if lengths is not None and reads_lengths(workload, run):
        drawn |= sequence_tensors(workload, lengths)
    return {name: value.to(TORCH_DTYPES[stored[name].dtype]).contiguous() for name, value in drawn.items()}


def draw_weights(workload: Workload, seed: int, device: torch.device | str) -> dict[str, Tensor]:
    """One layer's random weights by name, scaled so that activations keep their size from layer to layer."""
    source = torch.Generator(device).manual_seed(2 * seed)
    stored = layer_tensors(workload)
    return {
        name: _draw_weight(stored[name], Inputs.RANDOM, source).to(TORCH_DTYPES[stored[name].dtype]) for name in WEIGHTS
    }


def _draw_lengths(workload: Workload, kind: Inputs, seed: int, device: torch.device | str) -> Tensor:
    """Lengths (batch,); each kind of inputs has its own."""
    place = list(Inputs).index(kind)
    drawn = workload.length_spec.draw_extremes(workload.batch, seed * len(Inputs) + place)
    return torch.tensor(drawn, device=device)


def typical_lengths(workload: Workload, device: torch.device | str) -> Tensor:
    """The lengths (batch,) that everything is timed on."""
    return torch.tensor(workload.length_spec.typical(workload.batch), device=device)


def _draw_activation(
    workload: Workload, tensor: Description, kind: Inputs, source: torch.Generator, lengths: Tensor | None
) -> Tensor:
    values = _codes(tensor, source) if kind is Inputs.CODED else _normal(tensor.shape, source)
    if tensor.name in ("scores", "masked_scores", "probs"):
        logits = values * PEAK if kind is Inputs.PEAKED else values
        if tensor.name == "scores":
            return logits
        masked = apply_mask(workload, EVERY_ENTRY, logits, lengths)
        return masked if tensor.name == "masked_scores" else softmax_rows(masked)
    if kind is Inputs.PEAKED:
        if tensor.name in ("qkv_raw", "qkv"):
            values[..., : workload.width] *= PEAK
        else:
            _raise_peaks(values)
    return values


def _draw_weight(tensor: Description, kind: Inputs, source: torch.Generator) -> Tensor:
    coded = kind is Inputs.CODED
    values = _codes(tensor, source) if coded else _uniform(tensor.shape, source)
    if tensor.name.startswith("w_"):
        scale = sqrt(3 / tensor.shape[-1])
        return values * (2.0 ** round(log2(scale)) if coded else scale)
    return values / 8 + (1.0 if tensor.name.startswith("gamma") else 0.0)


def _normal(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=source, device=source.device)


def _uniform(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=source, device=source.device) * 2 - 1


def _codes(tensor: Description, source: torch.Generator) -> Tensor:
    """Multiples of 1/16 from -1 to 1, each a hash of its own index, the tensor's name and the seed."""
    offset = source.initial_seed() + crc32(tensor.name.encode())
    codes = torch.empty(tensor.size, device=source.device)
    for first in range(0, tensor.size, CODES_AT_ONCE):
        part = codes[first : first + CODES_AT_ONCE]
        hashed = torch.arange(first, first + len(part), device=source.device) * 0x9E3779B1 + offset
        for shift, factor in ((15, 0x85EBCA77), (13, 0xC2B2AE3D)):
            hashed = ((hashed ^ (hashed >> shift)) & 0xFFFFFFFF) * factor
        part.copy_((((hashed >> 16) & 0xFFFF) % 33 - 16) / 16)
    return codes.view(tensor.shape)


def _raise_peaks(rows: Tensor) -> None:
    """Scale one value of each row, at a column that changes from row to row, by `PEAK`."""
    flat = rows.view(-1, rows.shape[-1])
    index = torch.arange(len(flat), device=rows.device)
    flat[index, index * 37 % flat.shape[1]] *= PEAK
