"""What the tests of every template check."""

import atexit
from functools import cache
from multiprocessing.connection import wait


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
    from atoffer_rl.kernels.verify import verify_choice

    verdict = verify_choice(workload, choice)
    assert verdict.passed, f"{choice} of {workload}: {verdict.reason}"


def assert_all_right(pairs):
    """The same of many (workload, choice) pairs, compiled ahead side by side."""
    compile_ahead(pairs)
    for workload, choice in pairs:
        assert_right(workload, choice)
