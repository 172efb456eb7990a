"""Train an agent with several seeds in replay, and compare it with random search at the same budget.

    python benchmarks/train_seeds.py --json benchmarks/results/train_seeds.json

The budget is a tenth of the workload's choices. For every seed: the regret of the recommendation, of that of the policy
that training began with, which searches without learning, of that of the rule that it was taught, and of random
search's, of the median random scheme, and of the policy's own deterministic rollout over the choices that the run
measured: with random weights, with the weights that training began with, and when it ended.
"""

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from atoffer_rl.agents import random_search
from atoffer_rl.agents.checkpoint import SHIPPED_POLICY, Checkpoint, load_checkpoint
from atoffer_rl.agents.evaluation import evaluate
from atoffer_rl.agents.hyperparameters import ppo_config
from atoffer_rl.agents.oracle import oracle
from atoffer_rl.agents.ppo import PPOSearch
from atoffer_rl.agents.rehearsal import Rehearsal
from atoffer_rl.agents.session import Result, Session, measured_us
from atoffer_rl.agents.teacher import teacher_action
from atoffer_rl.bench.record import check_writable, write_record
from atoffer_rl.bench.script import positive, run_script
from atoffer_rl.cli.search_job import BUDGET_SHARE
from atoffer_rl.envs.fusion_scheme import FusionSchemeEnv
from atoffer_rl.envs.search_episode import Search, SearchEpisode
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.measurers.replay import ReplayMeasurer
from atoffer_rl.records import RecordedTable, load_table, table_for
from atoffer_rl.workload import Workload

REGRETS = (
    "recommendation",
    "rollout",
    "rollout_before",
    "rollout_random_weights",
    "without_learning",
    "rule",
    "random_search",
    "random_scheme",
)
SCHEMES_DRAWN = 300


def main() -> None:
    """Run every seed; print and, if asked, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=positive, default=10, help="how many seeds, from 0 on")
    parser.add_argument("--table", type=Path, help="recorded table (default: the one that ships)")
    parser.add_argument("--policy", default=str(SHIPPED_POLICY), help="starting policy; random for random weights")
    parser.add_argument("--jobs", type=positive, default=1, help="seeds run at a time")
    parser.add_argument("--json", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    if arguments.json:
        check_writable(arguments.json)
    started = time.monotonic()
    table = load_table(arguments.table) if arguments.table else table_for(Workload())
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        jobs = [(seed, arguments.table, arguments.policy) for seed in range(arguments.seeds)]
        rows = []
        for row in pool.map(run_seed, *zip(*jobs, strict=True)):
            rows.append(row)
            regrets = "  ".join(f"{name} {row[f'{name}_regret']:.1%}" for name in REGRETS if f"{name}_regret" in row)
            print(f"seed {row['seed']}: {row['units']} units  {regrets}  {row['wall_seconds']:.0f} s", flush=True)
    summary = summarise(rows) | {"wall_seconds": time.monotonic() - started}
    print(json.dumps(summary, indent=1))
    if arguments.json:
        write_record(arguments.json, _header(table) | summary | {"rows": rows})


def run_seed(seed: int, table_path: Path | None, policy: str) -> dict[str, Any]:
    """Train one agent; all regrets at its budget."""
    workload = Workload()
    measurer = ReplayMeasurer(load_table(table_path) if table_path else table_for(workload))
    _, oracle_us = oracle(workload, measurer)
    budget = len(LegalSpace(workload, measurer.device).all_choices) // BUDGET_SHARE
    start = None if policy == "random" else load_checkpoint(Path(policy)).policy_alone()
    session = Session(Ledger(workload, measurer, budget), seed=seed, oracle_us=oracle_us)
    result = PPOSearch(ppo_config(), start)(session)
    others = {
        name: search(Session(Ledger(workload, measurer, budget), seed=seed, oracle_us=oracle_us)).regret
        for name, search in _other_searches(start).items()
    }
    return {
        "seed": seed,
        "budget": budget,
        "units": result.units,
        "oracle_us": oracle_us,
        "unfused_regret": result.unfused_us / oracle_us - 1.0,
        "recommendation_regret": result.regret,
        "rollout_regret": result.rollout_regret,
        "rollout_before_regret": _rollout_regret(session, start),
        "rollout_random_weights_regret": _rollout_regret(session, None),
        **{f"{name}_regret": regret for name, regret in others.items()},
        "random_scheme_regret": _random_scheme_regret(session),
        "measuring_seconds": result.seconds,
        "wall_seconds": result.wall_seconds,
    }


def _other_searches(start: Checkpoint | None) -> dict[str, Callable[[Session], Result]]:
    searches: dict[str, Callable[[Session], Result]] = {"random_search": random_search.search, "rule": _follow_rule}
    if start:
        searches["without_learning"] = partial(evaluate, start)
    return searches


def _follow_rule(session: Session) -> Result:
    """Search as the teacher of pre-training would."""
    env = FusionSchemeEnv(ledger=session.ledger)
    units = session.ledger.units or 0
    search = SearchEpisode(env, [Search(lambda _: session.ledger)], (units, units), settle=False)
    observation, _ = search.reset(seed=session.seed)
    over = False
    while not over:
        action = teacher_action(observation, search.action_masks())
        observation, _, over, _, _ = search.step(np.int64(action))
    env.close()
    return session.result("rule")


def _rollout_regret(session: Session, start: Checkpoint | None) -> float:
    """Regret of an untrained policy's rollout over what the session measured."""
    rehearsal = Rehearsal(session.ledger)
    scheme = rehearsal.rollout(PPOSearch(ppo_config(), start).model(session, rehearsal).policy)
    assert session.oracle_us is not None
    return measured_us(session.ledger, scheme) / session.oracle_us - 1.0


def _random_scheme_regret(session: Session) -> float:
    """Median regret of random schemes of the whole table; one that fails counts as infinite."""
    everything = Ledger(session.workload, session.ledger.measurer)
    everything.measure_all(everything.space.all_choices)
    source = random.Random(session.seed)
    drawn = [measured_us(everything, everything.space.draw(source)) for _ in range(SCHEMES_DRAWN)]
    assert session.oracle_us is not None
    return median(drawn) / session.oracle_us - 1.0


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over seeds, and how often the agent was better."""
    taken = [name for name in REGRETS if f"{name}_regret" in rows[0]]
    regrets = {f"median_{name}_regret": median(row[f"{name}_regret"] for row in rows) for name in taken}
    return regrets | {
        "seeds": len(rows),
        "better_than_random_search": sum(row["recommendation_regret"] < row["random_search_regret"] for row in rows),
        "better_than_random_weights": sum(row["rollout_regret"] < row["rollout_random_weights_regret"] for row in rows),
    }


def _header(table: RecordedTable) -> dict[str, Any]:
    packages = {name: version(name) for name in ("torch", "stable-baselines3", "sb3-contrib", "gymnasium", "numpy")}
    return {
        "device": table.device.name,
        "driver": table.header.machine.driver,
        "versions": {"python": platform.python_version(), **packages},
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "table": table.header.table,
        "workload": Workload().to_json(),
        "command": " ".join(["python", *sys.argv]),
    }


if __name__ == "__main__":
    run_script(main)
