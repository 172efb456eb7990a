"""Random legal schemes and random AToffer codes, each run on the GPU and compared with float64.

Example: python benchmarks/random_schemes.py --schemes 200 --codes 200 --json random_schemes.json
"""

import argparse
import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from atoffer_rl.atoffer_code import CODE_COUNT, AtofferProgram
from atoffer_rl.bench.record import record_of, write_record
from atoffer_rl.bench.script import run_script
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.lowering import lower
from atoffer_rl.kernels.measurers.open import open_cuda
from atoffer_rl.trial import ForwardRequest, Trial
from atoffer_rl.workload import Workload


def describe(name: str, trials: list[Trial]) -> dict[str, object]:
    """How many of `trials` ended how, and what went wrong first."""
    statuses = Counter(trial.status.value for trial in trials)
    worst = max((t.max_error / t.error_budget for t in trials if t.max_error and t.error_budget), default=0.0)
    failures = [f"{trial.status.value}: {trial.reason}" for trial in trials if not trial.ok]
    print(f"{name}: {dict(statuses)}, largest error {worst:.2f} of its budget", *failures[:5], sep="\n  ")
    return {"kind": name, "statuses": dict(statuses), "worst_error_over_budget": worst, "failures": failures}


def main() -> int:
    """Check them all; status 1 if any is not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemes", type=int, default=200)
    parser.add_argument("--codes", type=int, default=200)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--mask", default="strided")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the record here")
    options = parser.parse_args()
    workload = Workload(options.batch, options.seq_len, mask=options.mask, dtype=options.dtype, layers=2)
    source = random.Random(options.seed)
    with TemporaryDirectory() as folder:
        measurer, line = open_cuda(Path(folder) / "trials.db")
        print(line)
        space = LegalSpace(workload, measurer.device)
        schemes = [space.draw(source) for _ in range(options.schemes)]
        codes = source.sample(range(CODE_COUNT), options.codes)
        lowered = [lower(AtofferProgram.from_code(code), workload, measurer.device) for code in codes]
        try:
            groups = {
                "schemes": measurer.measure([ForwardRequest(workload, scheme) for scheme in schemes]),
                "codes": measurer.measure([ForwardRequest(workload, scheme) for scheme in lowered]),
            }
        finally:
            measurer.close()
    rows = [describe(name, trials) for name, trials in groups.items()]
    if options.json:
        write_record(options.json, record_of(rows) | {"workload": workload.to_json()})
    return int(any(not trial.ok for trials in groups.values() for trial in trials))


if __name__ == "__main__":
    run_script(main)
