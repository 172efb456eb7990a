"""A launchable that needs no GPU: it writes the truth through raw host pointers."""

import ctypes

import pytest
import torch

from atoffer_rl.kernels.reference import run_reference
from atoffer_rl.kernels.torch_dtypes import TORCH_DTYPES
from atoffer_rl.operators import run_results, run_weights
from atoffer_rl.tensors import layer_tensors, run_inputs
from atoffer_rl.workload import Workload


def tensor_at(pointer, described):
    """The tensor that lies at `pointer` in host memory."""
    raw = (ctypes.c_uint8 * described.size_bytes).from_address(pointer)
    return torch.frombuffer(raw, dtype=TORCH_DTYPES[described.dtype]).view(described.shape)


class Honest:
    """Writes a run's true results, rounded; then `spoil` (tensors by name, pointers by name) may touch them."""

    def __init__(self, workload, run, spoil=lambda tensors, pointers: None):
        self.workload = workload
        self.run = run
        self.spoil = spoil

    def launch(self, pointers, stream):
        assert stream == 0
        stored = layer_tensors(self.workload)
        names = (*run_inputs(self.workload, self.run), *run_weights(self.run), *run_results(self.run))
        tensors = {name: tensor_at(pointers[name], stored[name]) for name in names}
        for name, value in run_reference(self.workload, self.run, tensors).items():
            tensors[name].copy_(value)
        self.spoil(tensors, pointers)


@pytest.fixture(scope="session")
def honest():
    """The class of such launchables."""
    return Honest


@pytest.fixture(scope="session")
def small_workload():
    """Makes small workloads of an odd length; any field may be given."""

    def make(**fields):
        shape = {"batch": 2, "seq_len": 21, "heads": 2, "head_dim": 32, "ffn_dim": 96, "layers": 1}
        return Workload(**(shape | fields))

    return make
