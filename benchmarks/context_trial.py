"""Times segments after launches of themselves, and after a neutral kernel: which sums predict recorded forwards better.

    python benchmarks/context_trial.py --workload 5 --schemes 60

Whole forwards are taken from the table; segments are timed both ways here, so ranks compare, not sums.
"""

import argparse
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context

import numpy as np

from atoffer_rl.kernels.compiler import compile_kernel
from atoffer_rl.kernels.program import KernelProgram
from atoffer_rl.kernels.registry import template_named
from atoffer_rl.operators import run_results, run_weights
from atoffer_rl.records import describe, recorded_tables
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.table_summary import latencies, scheme_sum_us, spearman
from atoffer_rl.tensors import layer_tensors, run_inputs
from atoffer_rl.workload import Workload

REPLAYS = 40


def machine_code(workload: Workload, choice: Choice, arch: str) -> bytes | None:
    """The cubin of `choice`, None of a library call; runs in a process of its own."""
    program = template_named(choice.template).program(workload, choice)
    return compile_kernel(program, arch) if isinstance(program, KernelProgram) else None


def both_ways(workload: Workload, choices: Iterable[Choice]) -> dict[Choice, tuple[float, float]]:
    """Latency in us of each choice: after itself, and after a neutral kernel."""
    import cupy
    import torch

    from atoffer_rl.kernels.launch import load_program
    from atoffer_rl.kernels.machine import current_device
    from atoffer_rl.kernels.reference import TORCH_DTYPES, Inputs, draw_inputs
    from atoffer_rl.kernels.timing import SegmentContext, time_launches

    device, stream, stored = current_device(), cupy.cuda.Stream(non_blocking=True), layer_tensors(workload)
    contexts: dict[Run, SegmentContext] = {}

    def context(run: Run) -> SegmentContext:
        if run not in contexts:
            drawn = draw_inputs(workload, run, Inputs.RANDOM, 0, torch.device("cuda"))
            results = {
                name: torch.empty(stored[name].shape, dtype=TORCH_DTYPES[stored[name].dtype], device="cuda")
                for name in run_results(run)
            }
            activations = {name: drawn[name] for name in run_inputs(workload, run)}
            weights = {name: drawn[name] for name in run_weights(run)}
            contexts[run] = SegmentContext(activations, weights, results, device.l2_bytes)
            torch.cuda.synchronize()
        return contexts[run]

    listed = list(choices)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        cubins = list(pool.map(partial(machine_code, workload, arch=device.arch), listed))
    loaded = {
        choice: load_program(template_named(choice.template).program(workload, choice), cubin)
        for choice, cubin in zip(listed, cubins, strict=True)
    }
    neutral = min((choice for choice in listed if choice.template == "chain"), key=str)
    spacer = partial(loaded[neutral].launch, context(neutral.run).pointers[0], stream.ptr)
    spacer_us = time_launches(stream, [spacer], REPLAYS).latency_us
    found = {}
    for choice, launchable in loaded.items():
        own = [partial(launchable.launch, pointers, stream.ptr) for pointers in context(choice.run).pointers]
        alone_us = time_launches(stream, own, REPLAYS).latency_us
        paired = list(chain.from_iterable((spacer, launch) for launch in own))
        found[choice] = alone_us, 2 * time_launches(stream, paired, REPLAYS).latency_us - spacer_us
    return found


def report(name: str, schemes: list[Scheme], sums: list[float], forwards: list[float], finalists: int) -> None:
    """How well `sums` predict `forwards`."""
    best = sorted(range(len(sums)), key=sums.__getitem__)[:finalists]
    excess = forwards[best[0]] / min(forwards[index] for index in best) - 1
    templates = sorted({choice.template for scheme in schemes for choice in scheme.choices})
    counts = [[sum(choice.template == one for choice in scheme.choices) for one in templates] for scheme in schemes]
    table = np.array([[*row, total] for row, total in zip(counts, sums, strict=True)])
    cost = np.linalg.lstsq(table, np.array(forwards), rcond=None)[0]
    terms = ", ".join(f"{one} {value:+.2f}" for one, value in zip([*templates, "sum"], cost, strict=True))
    print(f"{name}: rank correlation {spearman(sums, forwards):.4f}, oracle {excess:+.1%}, us a choice more: {terms}")


def main() -> None:
    """Run the trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", type=int, default=5, help="which of the table's")
    parser.add_argument("--schemes", type=int, default=60, help="of the least recorded sums")
    parser.add_argument("--finalists", type=int, default=32)
    options = parser.parse_args()
    table = recorded_tables()[0]
    workload = table.header.workloads[options.workload]
    by_choice, recorded = latencies(table.segments(workload)), table.forwards(workload)
    ran = [scheme for scheme, trial in recorded.items() if trial.latency_us is not None]
    schemes = sorted(ran, key=lambda scheme: scheme_sum_us(scheme, by_choice))[: options.schemes]
    forwards = [(recorded[scheme].latency_us or 0.0) / workload.layers for scheme in schemes]
    found = both_ways(workload, dict.fromkeys(choice for scheme in schemes for choice in scheme.choices))
    print(describe(workload))
    report("as recorded", schemes, [scheme_sum_us(one, by_choice) for one in schemes], forwards, options.finalists)
    for index, name in enumerate(("after themselves", "after a neutral kernel")):
        here = {choice: times[index] for choice, times in found.items()}
        report(name, schemes, [scheme_sum_us(one, here) for one in schemes], forwards, options.finalists)


if __name__ == "__main__":
    main()
