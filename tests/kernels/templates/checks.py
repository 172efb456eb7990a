"""What the tests of every template check."""

import atexit
import ctypes
from functools import cache
from multiprocessing.connection import wait

import numpy as np


@cache
def compilers():
    """One pool for all tests: its processes take seconds to start."""
    from atoffer_rl.kernels.compile_pool import CompilePool

    pool = CompilePool()
    atexit.register(pool.kill)
    return pool


def compile_ahead(pairs):
    """Put the kernels of (workload, choice) pairs into the cache of cubins, on all CPUs; failures show up later."""
    from atoffer_rl.kernels.cubin_cache import CubinCache
    from atoffer_rl.kernels.machine import current_device
    from atoffer_rl.kernels.program import KernelProgram
    from atoffer_rl.kernels.registry import template_named

    cubins, arch, pool = CubinCache(), current_device().arch, compilers()
    for workload, choice in pairs:
        program = template_named(choice.template).program(workload, choice)
        if isinstance(program, KernelProgram) and cubins.get(program, arch) is None:
            pool.submit(program, program, arch)
    while pool.pending:
        wait(pool.waitables, timeout=max(pool.seconds_left, 0.0))
        for compiled in pool.collect():
            if compiled.cubin is not None:
                cubins.put(compiled.token, arch, compiled.cubin)


def assert_right(workload, choice):
    """`choice`, compiled for the GPU at hand, computes its run within the budget for error."""
    from atoffer_rl.kernels.verifier import verify_choice

    verdict = verify_choice(workload, choice)
    assert verdict.passed, f"{choice} of {workload}: {verdict.reason}"


def assert_all_right(pairs):
    """The same of many (workload, choice) pairs, compiled ahead side by side."""
    compile_ahead(pairs)
    for workload, choice in pairs:
        assert_right(workload, choice)


def assert_rendered_alike(workload, choice):
    """`choice` is rendered to the same program and plan each time, with one entry point."""
    from atoffer_rl.kernels.registry import template_named

    first, second = (template_named(choice.template).program(workload, choice) for _ in range(2))
    assert first == second
    assert first.source.count('extern "C"') == 1
    assert first.entry in first.source
    for name, array in first.plan().items():
        np.testing.assert_array_equal(array, second.plan()[name])


def assert_unkept_columns_stay_out(workload, choice):
    """`choice` of [2,6] in float16, on the GPU at hand: NaN in columns that no row keeps changes nothing.

    Rows that keep nothing give zeros.
    """
    import torch

    from atoffer_rl.kernels.launch import load_choice

    w, keep = workload, torch.from_numpy(workload.mask_spec.keep(workload.seq_len).copy()).cuda()
    qkv = torch.randn(w.batch, w.seq_len, 3, w.heads, w.head_dim, dtype=torch.float16, device="cuda")
    clean, poisoned = (torch.full((w.batch, w.seq_len, w.width), torch.nan, device="cuda").half() for _ in range(2))
    launchable, stream = load_choice(w, choice), torch.cuda.current_stream().cuda_stream
    launchable.launch({"qkv": qkv.data_ptr(), "merged": clean.data_ptr()}, stream)
    spoiled = qkv.clone()
    spoiled[:, :, 1:][~keep.any(dim=1)] = torch.nan
    launchable.launch({"qkv": spoiled.data_ptr(), "merged": poisoned.data_ptr()}, stream)
    assert not clean.isnan().any()
    assert torch.equal(clean, poisoned)
    assert not clean[~keep.any(dim=2)].any()


def assert_unkept_columns_stay_out_emulated(emulator, workload, choice, poison):
    """The same on an emulated machine, of `poison` in place of NaN."""
    keep = workload.mask_spec.keep(workload.seq_len)
    kernel, qkv = emulator.load(workload, choice), random_qkv(workload)
    clean = launch(kernel, workload, qkv)
    qkv[:, :, 1:][~keep.any(axis=1)] = poison
    np.testing.assert_array_equal(launch(kernel, workload, qkv), clean)
    assert np.isfinite(clean).all()
    assert not clean[~keep.any(axis=2)].any()


def random_qkv(workload):
    """Queries, keys and values (batch, seq_len, 3, heads, head_dim), float16."""
    shape = workload.batch, workload.seq_len, 3, workload.heads, workload.head_dim
    return np.random.default_rng(2).standard_normal(shape).astype(np.float16)


def launch(kernel, workload, qkv):
    """What `merged` holds after a launch of an emulated kernel on `qkv`, bit for bit."""
    result = ctypes.create_string_buffer(b"\xff" * (qkv.nbytes // 3), qkv.nbytes // 3)
    kernel.launch({"qkv": qkv.ctypes.data, "merged": ctypes.addressof(result)})
    return np.frombuffer(result.raw, qkv.dtype).reshape(workload.batch, workload.seq_len, workload.width)
