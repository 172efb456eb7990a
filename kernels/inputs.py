"""Drawn inputs and weights to try a run on, in plain torch, each a function of its seed.

Import this module only where something is tried or timed: it loads torch.
"""

from enum import Enum
from math import log2, sqrt
from zlib import crc32

import torch
from torch import Tensor

from atoffer_rl.kernels.formulas import EVERY_ENTRY, apply_mask, softmax_rows
from atoffer_rl.kernels.packing import sequence_tensors
from atoffer_rl.kernels.torch_dtypes import TORCH_DTYPES
from atoffer_rl.operators import WEIGHTS, run_activations, run_weights
from atoffer_rl.run import Run
from atoffer_rl.tensors import Tensor as Description
from atoffer_rl.tensors import layer_tensors, reads_lengths
from atoffer_rl.workload import Workload

PEAK = 100.0
CODES_AT_ONCE = 2**26


class Inputs(Enum):
    """What a run is tried on.

    `RANDOM` is normally distributed. `PEAKED` scales logits by 100, and elsewhere gives each row one value 100 times
    the others. `CODED` makes every value a code of its own place, small multiples of 1/16 whose products sum
    without rounding, under near-uniform attention: work that is skipped or lands elsewhere changes the result.
    """

    RANDOM = "random"
    PEAKED = "peaked"
    CODED = "coded"


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
