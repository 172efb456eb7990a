"""Kernels on an emulated machine, verified as a measurer verifies them."""

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.templates.gather_choices import SMALL


@pytest.fixture
def one_thread():
    """What torch computes here is small: more threads only wait for each other."""
    from atoffer_rl.agents.threads import single_thread

    with single_thread():
        yield


@pytest.fixture
def assert_emulated(emulator, one_thread):
    """Three launches in a row, on inputs of every kind, are within the budget for error and leave counts at rest."""

    def assert_emulated(workload, choice, residents=64):
        import torch

        from atoffer_rl.kernels.verifier import Verifier

        kernel = emulator.load(workload, choice, residents)
        verdict = Verifier(workload, choice.run, device=torch.device("cpu")).judge(kernel)
        assert verdict.passed, verdict.reason
        assert not kernel.program.scratch or not kernel.array("gather_counts", np.int32).any()
        return kernel

    return assert_emulated


@pytest.fixture
def ragged_workload(tmp_path):
    """A mask for each sequence, with rows that keep nothing, a tile that keeps nothing, and columns no row keeps."""
    index = np.arange(77)
    keep = np.random.default_rng(1).random((2, 77, 77)) < 0.1
    keep |= np.abs(index[:, None] - index) < 3
    keep[0, 20:50] = False
    keep[1, :17] = False
    keep[1, 64:] = False
    keep[:, :, 30:35] = False
    np.save(tmp_path / "mask.npy", keep)
    return replace(SMALL, mask=f"file:{tmp_path / 'mask.npy'}")
