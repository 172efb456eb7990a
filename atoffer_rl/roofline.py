"""What a run has to move and compute at least, and how long a device needs for that at least."""

from functools import lru_cache

from atoffer_rl.device import DeviceSpec
from atoffer_rl.dtype import DType
from atoffer_rl.operators import reads_mask, run_activations, run_operators, run_results, run_weights
from atoffer_rl.run import Run
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.workload import Workload


@lru_cache(maxsize=1024)
def run_bytes(workload: Workload, run: Run) -> int:
    """Bytes of what `run` reads and stores in one layer, each tensor once; a mask's plan is not counted."""
    tensors = layer_tensors(workload)
    return sum(tensors[name].size_bytes for name in run_activations(run) + run_weights(run) + run_results(run))


@lru_cache(maxsize=1024)
def run_flops(workload: Workload, run: Run) -> int:
    """Floating-point operations of the products in `run` in one layer; the other operators never bound it.

    Products of attention count only pairs that the mask keeps where the run contains the mask.
    """
    w = workload
    pairs = w.score_count
    if reads_mask(run):
        pairs = round(w.score_count * float(w.mask_spec.keep(w.seq_len).mean()))
    products = {
        "qkv_gemm": w.rows * w.width * 3 * w.width,
        "qk_gemm": pairs * w.head_dim,
        "pv_gemm": pairs * w.head_dim,
        "out_gemm": w.rows * w.width * w.width,
        "ffn1_gemm": w.rows * w.width * w.ffn_dim,
        "ffn2_gemm": w.rows * w.width * w.ffn_dim,
    }
    return 2 * sum(products.get(op.name, 0) for op in run_operators(run))


def memory_us(size_bytes: float, device: DeviceSpec) -> float:
    """Time to move `size_bytes` at the device's memory bandwidth."""
    return size_bytes / (device.bandwidth_gb_s * 1e3)


def arithmetic_us(flops: float, dtype: DType, device: DeviceSpec) -> float:
    """Time for `flops` at the device's arithmetic ceiling for `dtype`."""
    return flops / (device.peak_tflops(dtype) * 1e6)


def floor_us(size_bytes: float, flops: float, dtype: DType, device: DeviceSpec) -> float:
    """The roofline: the longer of the time to move the bytes and the time to do the arithmetic."""
    return max(memory_us(size_bytes, device), arithmetic_us(flops, dtype, device))
