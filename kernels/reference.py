"""The layer in plain torch: what runs must store, exactly and in eager low precision.

Import this module only where a reference is computed: it loads torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum

import torch
from torch import Tensor

from atoffer_rl.kernels.formulas import EVERY_ENTRY, FORMULAS
from atoffer_rl.kernels.packing import (
    pack_rows,
    reads_offsets,
    sequence_tensors,
    unpacked_tensors,
    unpacked_workload,
)
from atoffer_rl.kernels.torch_dtypes import TORCH_DTYPES
from atoffer_rl.operators import LAYER_INPUT, LAYER_OUTPUT, WHOLE_LAYER, run_operators, run_results, run_weights
from atoffer_rl.run import Run
from atoffer_rl.tensors import LENGTHS, layer_tensors, run_inputs
from atoffer_rl.workload import Workload

CONTEXT = Run(2, 5)
"""What makes `context`, whose scores need not all be there at a time."""
ATTENTION_SCORES = 2**29
"""Scores that a reference of attention holds at a time, where they are no result: 4 GB in float64."""


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
        compute = _attention if part == CONTEXT else _operators
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
    if CONTEXT.first not in run or CONTEXT.last not in run:
        return (run,)
    parts = (Run(run.first, CONTEXT.first - 1), CONTEXT, Run(CONTEXT.last + 1, run.last))
    return tuple(part for part in parts if part.first <= part.last)


def _operators(
    workload: Workload, run: Run, values: Mapping[str, Tensor], precision: Precision, entries: slice
) -> dict[str, Tensor]:
    """What `run` must store, from all it reads; nothing is held longer than it is needed."""
    stored, live = layer_tensors(workload), dict(values)
    for operator in run_operators(run):
        alone = Run(operator.index, operator.index)
        arguments = [live[name] for name in run_inputs(workload, alone) + operator.weights]
        result = FORMULAS[operator.name](workload, entries, *arguments)
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
    """As `_operators` for `CONTEXT`, as many heads at a time as `ATTENTION_SCORES` allows."""
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
