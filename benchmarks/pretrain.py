"""Train the policy that ships, on recorded workloads that share no signature with the default one.

    python benchmarks/pretrain.py

The same tables and seed give the same policy.
"""

import argparse
import time
from pathlib import Path

from atoffer_rl.agents.checkpoint import SHIPPED_POLICY, save_checkpoint
from atoffer_rl.agents.hyperparameters import pretrain_config
from atoffer_rl.agents.log import RunLog
from atoffer_rl.agents.pretraining import pretrain
from atoffer_rl.agents.training_tables import training_tables
from atoffer_rl.bench.record import check_writable
from atoffer_rl.bench.script import positive, run_script
from atoffer_rl.records import describe, load_table


def main() -> None:
    """Train and write the policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random")
    parser.add_argument("--timesteps", type=positive, help="steps of PPO after imitation")
    parser.add_argument("--table", type=Path, action="append", help="recorded table (default: all that ship)")
    parser.add_argument("--output", type=Path, default=SHIPPED_POLICY, help="where the policy is written")
    parser.add_argument("--log-folder", type=Path, help="where TensorBoard events are written")
    arguments = parser.parse_args()
    check_writable(arguments.output)
    tables = training_tables([load_table(path) for path in arguments.table] if arguments.table else None)
    if not tables:
        parser.error("no recorded workload may be trained on: record some that share no signature with the default one")
    for table in tables:
        print(f"training on {describe(table.workload)}: {len(table.trials)} choices")
    started = time.monotonic()
    with RunLog(arguments.log_folder) as log:
        policy = pretrain(tables, pretrain_config({"timesteps": arguments.timesteps}), arguments.seed, log)
    save_checkpoint(policy, arguments.output)
    print(f"{arguments.output} written after {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    run_script(main)
