r"""Launches one choice of attention a few times on random values, for a profiler to watch.

Example: ncu --set full --launch-skip 2 --launch-count 1 python benchmarks/launch_choice.py \
    benchmarks/results/mha_paper_h200.json --batch 16 --seq-len 1024 --mask strided
"""

import argparse
from pathlib import Path

from atoffer_rl.bench.cells import ATTENTION, device_here, identity_of
from atoffer_rl.bench.record_file import mha_rows
from atoffer_rl.bench.script import run_script
from atoffer_rl.errors import LogError
from atoffer_rl.kernels.encoder import addresses
from atoffer_rl.kernels.launch import load_choice
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.scheme import Choice
from atoffer_rl.workload import Workload

LAUNCHES = 4


def winner(record: Path, workload: Workload) -> Choice:
    """The choice that a record of `bench mha` names for `workload`.

    Raises:
        LogError: If it is no such record, has no row of it, or of a choice that is not legal any more.
    """
    wanted = identity_of(workload)
    for row in mha_rows(record):
        if all(row[name] == value for name, value in wanted.items()):
            for choice in LegalSpace(workload).choices(ATTENTION):
                if str(choice) == row["ours_choice"]:
                    return choice
    raise LogError(f"{record} names no legal choice for this workload: run atoffer bench mha --json {record}")


def main() -> int:
    """Launch it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--mask", required=True)
    options = parser.parse_args()
    workload = Workload(batch=options.batch, seq_len=options.seq_len, mask=options.mask)
    choice = winner(options.record, workload)
    device_here()  # or an error that says what is missing
    import torch

    from atoffer_rl.kernels.inputs import Inputs, draw_inputs
    from atoffer_rl.tensors import layer_tensors

    inputs = draw_inputs(workload, ATTENTION, Inputs.RANDOM, 0, "cuda")
    merged = torch.empty(layer_tensors(workload)["merged"].shape, dtype=inputs["qkv"].dtype, device="cuda")
    segment = load_choice(workload, choice)
    for _ in range(LAUNCHES):
        segment.launch(addresses({**inputs, "merged": merged}), torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    print(choice)
    return 0


if __name__ == "__main__":
    run_script(main)
