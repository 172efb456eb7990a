"""Kernels on an emulated machine, verified as a measurer verifies them."""

import numpy as np
import pytest


@pytest.fixture
def one_thread():
    """What torch computes here is small: more threads only wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def assert_emulated(emulator, one_thread):
    """Three launches in a row, on inputs of every kind, are within the budget for error and leave counts at rest."""

    def assert_emulated(workload, choice, residents=64):
        import torch

        from atoffer_rl.kernels.verify import verify_launchable

        kernel = emulator.load(workload, choice, residents)
        verdict = verify_launchable(workload, choice.run, kernel, device=torch.device("cpu"))
        assert verdict.passed, verdict.reason
        assert not kernel.program.scratch or not kernel.array("gather_counts", np.int32).any()
        return kernel

    return assert_emulated
