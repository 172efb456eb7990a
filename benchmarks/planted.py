"""A live search over a space with three planted kernels: one crashes, one hangs, one is wrong in a single column.

Shows that the search ends with a right scheme and that the store says which was which:

    python benchmarks/planted.py --store /tmp/planted.db
"""

import argparse
from collections import Counter
from pathlib import Path

from atoffer_rl.agents import random_search
from atoffer_rl.agents.session import Session
from atoffer_rl.bench.script import positive, run_script
from atoffer_rl.kernels.choice_program import template_program
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.measurers.open import open_cuda
from atoffer_rl.kernels.program import KernelProgram, Program
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.store import Store
from atoffer_rl.trial import Status
from atoffer_rl.workload import Workload

WORKLOAD = Workload(batch=2, seq_len=64, heads=4, head_dim=32, ffn_dim=256, layers=2)
BIAS_RESIDUAL = Run(8, 8)
WRONG_COLUMN = 17
THREADS = 128
UNITS = 48
BODIES = {
    Status.CRASHED: "reinterpret_cast<volatile int*>(64)[threadIdx.x] = 1;",
    Status.TIMEOUT: "volatile int running = 1; while (running) { __nanosleep(1000); }",
    Status.WRONG_RESULT: "",
}
SOURCE = """#include <cuda_fp16.h>
// Bias and residual, with what was planted: {status}.
extern "C" __global__ void planted(const __half* out_raw, const __half* x, const __half* b_out, __half* attn_sum) {{
    const int i = blockIdx.x * {threads} + threadIdx.x;
    const int column = i % {width};
    {body}
    if (i < {size}) {{
        const float error = column == {wrong_column} ? {error}f : 0.0f;
        const float sum = __half2float(out_raw[i]) + __half2float(b_out[column]) + __half2float(x[i]);
        attn_sum[i] = __float2half(sum + error);
    }}
}}
"""


def planted_choices() -> dict[Choice, Status]:
    """Three choices that are not the default one, and what their kernels do."""
    return dict(zip(LegalSpace(WORKLOAD).choices(BIAS_RESIDUAL)[1:], BODIES, strict=False))


def planted_program(workload: Workload, choice: Choice) -> Program:
    """The program of a choice, or what was planted in its place."""
    status = planted_choices().get(choice)
    if status is None:
        return template_program(workload, choice)
    size = workload.rows * workload.width
    source = SOURCE.format(
        status=status.value,
        body=BODIES[status],
        threads=THREADS,
        width=workload.width,
        size=size,
        wrong_column=WRONG_COLUMN,
        error=1.0 if status is Status.WRONG_RESULT else 0.0,
    )
    arguments = ("out_raw", "x", "b_out", "attn_sum")
    return KernelProgram("planted", source, (), (-(-size // THREADS), 1, 1), (THREADS, 1, 1), 0, arguments)


def search(store_path: Path, units: int = UNITS) -> Scheme:
    """Search with the planted kernels among what is measured; the recommended scheme."""
    measurer, line = open_cuda(store_path, planted_program)
    print(line)
    try:
        ledger = Ledger(WORKLOAD, measurer, units=units)
        ledger.measure_all(planted_choices())
        return random_search.search(Session(ledger)).scheme
    finally:
        measurer.close()


def main() -> None:
    """Run the search and print what the store says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--units", type=positive, default=UNITS)
    arguments = parser.parse_args()
    scheme = search(arguments.store, arguments.units)
    with Store(arguments.store) as store:
        trials = list(store.trials())
    for trial in trials:
        if trial.choice in planted_choices():
            planted = planted_choices()[trial.choice].value
            print(f"planted {planted:<12} stored {trial.status.value:<12} {trial.choice}: {trial.reason}")
    statuses = Counter(trial.status.value for trial in trials)
    print(f"{len(trials)} trials: {', '.join(f'{count} {status}' for status, count in sorted(statuses.items()))}")
    print(f"recommended: {' '.join(str(choice) for choice in scheme.choices)}")


if __name__ == "__main__":
    run_script(main)
