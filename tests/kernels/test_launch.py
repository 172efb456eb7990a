from threading import Thread

import numpy as np
import pytest

from atoffer_rl.errors import LaunchError
from atoffer_rl.kernels.launch import load_program
from atoffer_rl.kernels.program import KernelProgram

COUNT = 1000
SHARED_BYTES = 100 * 1024
SOURCE = f"""
extern "C" __global__ void scale(const float* x, const float* factors, float* y) {{
    extern __shared__ float staged[];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int last = {SHARED_BYTES} / 4 - 1;
    staged[last - threadIdx.x] = i < {COUNT} ? x[i] : 0.0f;
    __syncthreads();
    if (i < {COUNT}) y[i] = staged[last - threadIdx.x] * factors[i % 10];
}}
"""


def scale(entry="scale", shared_bytes=SHARED_BYTES):
    factors = np.arange(10, dtype=np.float32)
    arguments = ("x", "factors", "y")
    return KernelProgram(
        entry, SOURCE, (), (8, 1, 1), (128, 1, 1), shared_bytes, arguments, lambda: {"factors": factors.copy()}
    )


STEPS = 50
STEP_SOURCE = f"""
#include "common.cuh"
extern "C" __global__ void step(const int* x, int* y) {{
    atoffer::wait_for_inputs();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < {COUNT}) y[i] = x[{COUNT} - 1 - i] + 1;
}}
"""


def step():
    return KernelProgram("step", STEP_SOURCE, ("common.cuh",), (8, 1, 1), (128, 1, 1), 0, ("x", "y"), overlaps=True)


def compiled(program):
    from atoffer_rl.kernels.compiler import compile_kernel
    from atoffer_rl.kernels.machine import current_device

    return compile_kernel(program, current_device().arch)


def test_a_kernel_needs_its_machine_code():
    with pytest.raises(LaunchError, match="compile it first"):
        load_program(scale())


@pytest.mark.gpu
def test_a_kernel_gets_its_plan_its_shared_memory_and_its_stream():
    import torch

    launchable = load_program(scale(), compiled(scale()))
    x, y = torch.randn(COUNT, device="cuda"), torch.zeros(COUNT, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    launchable.launch({"x": x.data_ptr(), "y": y.data_ptr()}, stream.cuda_stream)
    stream.synchronize()
    assert torch.equal(y, x * (torch.arange(COUNT, device="cuda") % 10))
    other = torch.zeros_like(y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        launchable.launch({"x": x.data_ptr(), "y": other.data_ptr()}, stream.cuda_stream)
    assert not other.any()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(other, y)


@pytest.mark.gpu
def test_kernels_that_overlap_still_see_what_those_before_wrote():
    import torch

    launchable = load_program(step(), compiled(step()))
    x, y = torch.zeros(COUNT, dtype=torch.int32, device="cuda"), torch.zeros(COUNT, dtype=torch.int32, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for number in range(STEPS):
            source, target = (x, y) if number % 2 == 0 else (y, x)
            launchable.launch({"x": source.data_ptr(), "y": target.data_ptr()}, stream.cuda_stream)
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(x, torch.full_like(x, 2 * STEPS))


@pytest.mark.gpu
def test_a_new_thread_launches():
    import torch

    launchable = load_program(step(), compiled(step()))
    x, y = torch.ones(COUNT, dtype=torch.int32, device="cuda"), torch.zeros(COUNT, dtype=torch.int32, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    pointers = {"x": x.data_ptr(), "y": y.data_ptr()}
    thread = Thread(target=lambda: launchable.launch(pointers, stream.cuda_stream))
    thread.start()
    thread.join()
    stream.synchronize()
    assert torch.equal(y, torch.full_like(y, 2))


@pytest.mark.gpu
def test_equal_plans_share_device_memory():
    from atoffer_rl.kernels.device_array import upload

    first, same, other = (upload(np.array(values, np.int32)) for values in ([1, 2], [1, 2], [1, 3]))
    assert first.pointer == same.pointer != other.pointer


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("program", "cubin"),
    [
        (scale(), b"not a cubin"),
        (scale(entry="missing"), None),
        (scale(shared_bytes=2**20), None),
    ],
)
def test_what_the_driver_refuses_is_one_line(program, cubin):
    with pytest.raises(LaunchError, match="cannot load") as refused:
        load_program(program, cubin or compiled(scale()))
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.gpu
def test_one_wrong_column_of_a_real_kernel_is_found():
    import cupy

    from atoffer_rl.kernels.launch import load_choice
    from atoffer_rl.kernels.legal_space import LegalSpace
    from atoffer_rl.kernels.verifier import Verifier
    from atoffer_rl.run import Run
    from atoffer_rl.workload import Workload

    workload, run = Workload(batch=2, seq_len=128, layers=1), Run(14, 14)
    sound = load_choice(workload, LegalSpace(workload).choices(run)[0])
    verifier = Verifier(workload, run)
    assert verifier.judge(sound).passed

    class WrongColumn:
        def launch(self, pointers, stream):
            sound.launch(pointers, stream)
            memory = cupy.cuda.UnownedMemory(pointers["y"], workload.rows * workload.width * 2, self)
            y = cupy.ndarray((workload.rows, workload.width), cupy.float16, cupy.cuda.MemoryPointer(memory, 0))
            y[:, 700] += cupy.float16(0.05)

    verdict = verifier.judge(WrongColumn())
    assert not verdict.passed
    assert "y is off by" in verdict.reason
