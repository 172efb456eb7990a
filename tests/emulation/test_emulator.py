"""The emulated machine: what it computes, and that it says what a kernel does wrong."""

from dataclasses import replace

import numpy as np
import pytest

from atoffer_rl.kernels.program import KernelProgram
from tests.emulation import emulator as emulator_module
from tests.emulation.emulator import EmulatedKernel, EmulationError

SHARED_BYTES = 2 * 512 + 8
SOURCE = """
#include "faults.cuh"
extern "C" __global__ void entry(const __half* a, const __half* b, const int* fault, int* counts, float* result) {
    extern __shared__ __align__(256) char memory[];
    if (*fault == 0) return atoffer::multiply(memory, a, b, result);
    if (*fault == 100) return atoffer::take_turns(counts, result);
    if (*fault == 103) return atoffer::multiply_tf32(a, b, result);
    if (*fault == 101) return atoffer::read_early(memory, a, result);
    if (*fault == 104 || *fault == 105) return atoffer::exchange_numbers(memory, *fault == 105, result);
    if (*fault == 106) return atoffer::multiply_panels<false>(memory, a, b, result);
    if (*fault == 107) return atoffer::multiply_panels<true>(memory, a, b, result);
    if (*fault == 108) {
        result[threadIdx.x] = 1.0f;
        return atoffer::wait_for_inputs();
    }
    if (*fault == 110) return atoffer::read_groups<0>(memory, a, result);
    if (*fault == 111) return atoffer::read_groups<1>(memory, a, result);
    if (*fault == 112) return atoffer::read_groups<2>(memory, a, result);
    if (*fault == 113) return atoffer::discard_second_line(result);
    if (*fault == 102) while (true) ++*const_cast<volatile int*>(counts);
    atoffer::misuse(*fault, memory, a, result);
}
"""
PROGRAM = KernelProgram(
    entry="entry",
    source=SOURCE,
    headers=("common.cuh", "barriers.cuh", "cluster.cuh", "panels.cuh", "tf32.cuh", "wgmma.cuh"),
    grid=(1, 1, 1),
    block=(32, 1, 1),
    shared_bytes=SHARED_BYTES,
    arguments=("a", "b", "fault", "counts", "result"),
    scratch=(("counts", 8),),
)


@pytest.fixture
def launch(emulator):
    """Launches one of the small kernels; its matrices, and its result."""

    def launch(fault, residents=1, shapes=((16, 16), (16, 8), (128,)), **changes):
        source = np.random.default_rng(0)
        a, b, result = shapes
        tensors = {
            "a": source.integers(-8, 8, a).astype(np.float16),
            "b": source.integers(-8, 8, b).astype(np.float16),
            "fault": np.array([fault], np.int32),
            "result": np.zeros(result, np.float32),
        }
        sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
        program = replace(PROGRAM, **changes)
        EmulatedKernel(emulator.compile(program), program, sizes, residents).launch(
            {name: tensor.ctypes.data for name, tensor in tensors.items()}
        )
        return tensors

    return launch


def test_a_product_by_way_of_copies_and_matrix_loads(launch):
    tensors = launch(0)
    expected = tensors["a"].astype(np.float32) @ tensors["b"].astype(np.float32)
    np.testing.assert_array_equal(tensors["result"].reshape(16, 8), expected)


def test_a_product_in_tf32(launch):
    tensors = launch(103)
    expected = tensors["a"][:, :8].astype(np.float32) @ tensors["b"][:8].astype(np.float32)
    np.testing.assert_array_equal(tensors["result"].reshape(16, 8), expected)


@pytest.mark.parametrize(("fault", "b"), [(106, (64, 16)), (107, (16, 64))])
def test_a_warpgroups_product_of_panels(launch, fault, b):
    shapes, room = ((64, 16), b, (64, 64)), 1024 + 128 * 128
    tensors = launch(fault, shapes=shapes, block=(128, 1, 1), shared_bytes=room)
    left, right = tensors["a"].astype(np.float32), tensors["b"].astype(np.float32)
    np.testing.assert_array_equal(tensors["result"], left @ (right.T if fault == 106 else right))


def test_inputs_are_waited_for(launch):
    assert launch(108)["result"][:32].all()
    with pytest.raises(EmulationError, match="an input is touched before inputs are waited for"):
        launch(108, overlaps=True, plan=lambda: {"fault": np.array([108], np.int32)})


def test_shared_memory_is_nan_until_a_copy_is_waited_for(launch):
    assert np.isnan(launch(101)["result"][:32]).all()


@pytest.mark.parametrize("pending", [0, 1, 2])
def test_groups_of_copies_are_there_once_waited_for(launch, pending):
    tensors = launch(110 + pending, shared_bytes=3 * 512)
    copied, cleared = tensors["result"][:96].reshape(3, 2, 16).swapaxes(0, 1)
    here = 2 - pending  # the third copy belongs to no group
    np.testing.assert_array_equal(copied[:here], tensors["a"][:, [0, 8]].T[:here])
    assert not cleared[:here].any()
    assert np.isnan(copied[here:]).all()
    assert np.isnan(cleared[here:]).all()


def test_a_discarded_line_is_nan(launch):
    lines = launch(113)["result"].reshape(4, 32)
    assert np.isnan(lines).nonzero()[0].tolist() == [1] * 32 + [3]
    assert np.isnan(lines[3, 31])
    assert (lines[~np.isnan(lines)] == 1).all()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (1, "block 0, thread .*: a copy at 264, no multiple of 16 bytes"),
        (2, "misaligned address"),
        (3, "there is nothing at 0x"),
        (4, "ldmatrix at byte 1040 of shared memory, of which there are 1032"),
        (5, "there is no barrier at 1280"),
        (6, "deadlock\nblock 0, warp 0: 31 lanes wait, lane 1 for a named barrier"),
        (7, "lanes of a warp meet in different instructions: .*__syncwarp"),
        (8, "there is nothing at 0x"),
        (9, "block 0 wrote behind its shared memory"),
        (10, "misaligned address .* requires 8 byte alignment"),
        (11, "there is nothing at 0x"),
    ],
)
def test_faults_end_with_a_message(launch, fault, message):
    with pytest.raises(EmulationError, match=message):
        launch(fault)


def test_kernels_that_never_end_are_stopped(launch, monkeypatch):
    launch(0)
    monkeypatch.setattr(emulator_module, "SECONDS", 1)
    with pytest.raises(EmulationError, match="not done after 1 s"):
        launch(102)


def test_resident_blocks_take_turns(launch):
    assert launch(100, residents=2, grid=(2, 1, 1))["result"][:2].all()


def test_blocks_that_wait_for_later_ones_wait_for_ever(launch):
    with pytest.raises(EmulationError, match="deadlock"):
        launch(100, residents=1, grid=(2, 1, 1))


CLUSTERS = {"source": SOURCE.replace("__global__ void", "__global__ void __cluster_dims__(2, 1, 1)"), "grid": (4, 1, 1)}


@pytest.mark.parametrize("residents", [2, 3, 4])
def test_blocks_of_a_cluster_store_into_each_other(launch, residents):
    assert launch(104, residents, **CLUSTERS)["result"][:4].tolist() == [1, 0, 3, 2]


def test_a_block_that_has_ended_has_no_shared_memory(launch):
    with pytest.raises(EmulationError, match="needs as many resident ones"):
        launch(104, 1, **CLUSTERS)
    with pytest.raises(EmulationError, match="block 1 has no shared memory: it has not begun, or has ended"):
        launch(105, 2, source=CLUSTERS["source"], grid=(2, 1, 1))


def test_what_does_not_compile_says_why(emulator):
    with pytest.raises(EmulationError, match=r"error: .*nothing_of_that_name"):
        emulator.compile(replace(PROGRAM, source=SOURCE + "int a = nothing_of_that_name;"))
