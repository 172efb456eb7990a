"""What a run has to move and compute at least, and how long a device needs for that.

Bytes come from device memory here: a run whose inputs are still in the cache may take less.
"""

from functools import lru_cache

import numpy as np

from atoffer_rl.device import DeviceSpec
from atoffer_rl.dtype import DType
from atoffer_rl.mask_structure import kept_within
from atoffer_rl.operators import reads_mask, run_activations, run_results, run_weights
from atoffer_rl.run import Run
from atoffer_rl.tensors import layer_tensors, reads_lengths
from atoffer_rl.workload import Workload


@lru_cache(maxsize=1024)
def run_bytes(workload: Workload, run: Run) -> int:
    """Bytes of what `run` reads and stores in one layer, each tensor once; a mask's plan is not counted.

    Of the activations of a run that reads sequence lengths, rows within them count, on average; of its results too
    where sequences are packed.
    """
    tensors = layer_tensors(workload)
    read = sum(tensors[name].size_bytes for name in run_activations(run))
    if reads_lengths(workload, run):
        read = round(read * valid_share(workload))
    return read + sum(tensors[name].size_bytes for name in run_weights(run)) + stored_bytes(workload, run)


def stored_bytes(workload: Workload, run: Run) -> int:
    """Bytes of what `run` stores: all rows, but for packed attention, which leaves out those of no sequence."""
    tensors = layer_tensors(workload)
    stored = sum(tensors[name].size_bytes for name in run_results(run))
    return round(stored * valid_share(workload)) if workload.packed and reads_mask(run) else stored


def valid_share(workload: Workload) -> float:
    """Tokens within the sequences' lengths over all tokens, on average."""
    return workload.length_spec.mean(np.arange(workload.seq_len + 1)) / workload.seq_len


@lru_cache(maxsize=64)
def kept_pairs(workload: Workload) -> int:
    """(query, key) pairs that the mask keeps within the sequences' lengths, over all heads, on average."""
    w = workload
    if not w.padded:
        return round(w.score_count * float(w.mask_spec.keep(w.seq_len).mean()))
    return round(w.batch * w.heads * w.length_spec.mean(kept_within(w.mask_spec, w.seq_len)))


def memory_us(size_bytes: float, device: DeviceSpec) -> float:
    """Time to move `size_bytes` at the device's memory bandwidth."""
    return size_bytes / (device.bandwidth_gb_s * 1e3)


def arithmetic_us(flops: float, dtype: DType, device: DeviceSpec) -> float:
    """Time for `flops` at the device's arithmetic ceiling for `dtype`."""
    return flops / (device.peak_tflops(dtype) * 1e6)


def floor_us(size_bytes: float, flops: float, dtype: DType, device: DeviceSpec) -> float:
    """The roofline: the longer of the time to move the bytes and the time to do the arithmetic."""
    return max(memory_us(size_bytes, device), arithmetic_us(flops, dtype, device))
