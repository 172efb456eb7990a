"""Environment steps a second in replay on one core, `action_masks()` included.

    python benchmarks/env_speed.py --json benchmarks/results/env_speed.json

Actions are random legal ones; drawing them is part of the time. Three situations are timed: a search without
a limit that keeps measuring new choices, one whose budget is spent, and one in which every choice was measured.
"""

import argparse
import platform
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

import gymnasium
import numpy as np

import atoffer_rl.envs  # noqa: F401  It registers the environment.
from atoffer_rl.bench.record import check_writable, write_record
from atoffer_rl.bench.script import positive, run_script
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.measurers.replay import ReplayMeasurer
from atoffer_rl.records import RecordedTable, load_table, table_paths
from atoffer_rl.workload import Workload

REPEATS = 5
SPENT_BUDGET = 64


def main() -> None:
    """Time every situation for the first workload of a table; print and, if asked, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, help="recorded table (default: the first that ships)")
    parser.add_argument("--steps", type=positive, default=5000, help="steps of one timing")
    parser.add_argument("--json", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    path = arguments.table or next(iter(table_paths()), None)
    if path is None:
        parser.error("no table ships with this installation: name one with --table")
    if arguments.json:
        check_writable(arguments.json)
    table = load_table(path)
    rows = list(_rows(table, table.header.workloads[0], arguments.steps))
    for row in rows:
        wall, processor = row["steps_per_second"], row["steps_per_cpu_second"]
        print(f"{row['situation']:<10} {wall:>9,.0f} steps a second, {processor:>9,.0f} a processor second")
    if arguments.json:
        write_record(arguments.json, _header(table) | {"rows": rows})


def _header(table: RecordedTable) -> dict[str, object]:
    packages = {name: version(name) for name in ("gymnasium", "numpy")}
    return {
        "device": platform.processor() or platform.machine(),
        "driver": "",
        "versions": {"python": platform.python_version(), **packages},
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "table": table.header.table,
    }


def _rows(table: RecordedTable, workload: Workload, steps: int) -> Iterator[dict[str, object]]:
    measurer = ReplayMeasurer(table)
    choices = LegalSpace(workload, table.device).all_choices
    for situation in ("measuring", "spent", "complete"):
        rates, units = [], []
        for repeat in range(REPEATS):
            ledger = Ledger(workload, measurer, SPENT_BUDGET if situation == "spent" else None)
            if situation == "complete":
                ledger.measure_all(choices)
            env = gymnasium.make("atoffer/FusionScheme-v0", ledger=ledger)
            if situation != "measuring":
                _walk(env, steps, repeat)
            rates.append(_walk(env, steps, repeat))
            units.append(ledger.units_spent)
        yield {
            "situation": situation,
            "workload": workload.to_json(),
            "choices": len(choices),
            "units": units,
            "steps": steps,
            "steps_per_second": median(wall for wall, _ in rates),
            "steps_per_cpu_second": median(cpu for _, cpu in rates),
            "samples": [wall for wall, _ in rates],
        }


def _walk(env: gymnasium.Env[np.ndarray, np.int64], steps: int, seed: int) -> tuple[float, float]:
    """Steps a second of a random legal walk, by the wall clock and by processor time."""
    draws = np.random.default_rng(seed).random(steps)
    masks = env.get_wrapper_attr("action_masks")
    env.reset()
    started, cpu_started = time.perf_counter(), time.process_time()
    for draw in draws:
        legal = np.flatnonzero(masks())
        _, _, over, _, _ = env.step(legal[int(draw * len(legal))])
        if over:
            env.reset()
    return steps / (time.perf_counter() - started), steps / (time.process_time() - cpu_started)


if __name__ == "__main__":
    run_script(main)
