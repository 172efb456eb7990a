"""Rows of padded and of packed sequences in plain torch: which are tokens, packed together or apart.

Import this module only where a reference is computed: it loads torch.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from atoffer_rl.operators import run_activations, run_results
from atoffer_rl.run import Run
from atoffer_rl.tensors import LENGTHS, OFFSETS, reads_lengths
from atoffer_rl.workload import Workload


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
