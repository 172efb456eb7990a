"""`atoffer train`: a PPO agent searches a workload's schemes and settles on the best it measured."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoffer_rl.agents.hyperparameters import MAX_ENVS
from atoffer_rl.cli import search_job as job
from atoffer_rl.cli.options import (
    WORKLOAD_NAMES,
    BudgetOption,
    ExportOption,
    JsonOption,
    LogFolderOption,
    MeasurerOption,
    ProgressOption,
    SecondsOption,
    SeedOption,
    StandaloneOption,
    StoreOption,
    at_most,
    refuse_options,
    workload_options,
)
from atoffer_rl.cli.output import print_line
from atoffer_rl.cli.policy_source import RANDOM, read_policy
from atoffer_rl.cli.search_report import program
from atoffer_rl.errors import PolicyError, StoreError
from atoffer_rl.workload import Workload

if TYPE_CHECKING:
    from atoffer_rl.agents.checkpoint import Checkpoint
    from atoffer_rl.agents.hyperparameters import PPOConfig
    from atoffer_rl.agents.log import RunLog
    from atoffer_rl.agents.session import Session
    from atoffer_rl.kernels.measurers.protocol import Measurer

MAX_TIMESTEPS = 10**9
KEPT_BY_RESUME = (*WORKLOAD_NAMES, "policy", "seed", "standalone", "log_folder")

TimestepsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        callback=at_most(MAX_TIMESTEPS),
        help="Stop after this many environment steps, in whole rollouts. [default: as --config]",
    ),
]
EnvsOption = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=MAX_ENVS, help="Environments that share the budget. [default: as --config]"),
]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="POLICY",
        help="Start from this policy or checkpoint; shipped, or random for random weights.",
    ),
]
ResumeOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Go on with this checkpoint.zip: its workload, space, policy, seed and folder hold, and its budget "
        "unless another is given. [default: a new run]",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="YAML file of hyperparameters. [default: the package's ppo.yml, or those of --resume]"
    ),
]


@workload_options
def command(
    *,
    context: typer.Context,
    workload: Workload,
    measurer: MeasurerOption = "auto",
    budget: BudgetOption = None,
    seconds: SecondsOption = None,
    standalone: StandaloneOption = False,
    timesteps: TimestepsOption = None,
    n_envs: EnvsOption = None,
    seed: SeedOption = 0,
    policy: PolicyOption = "shipped",
    resume: ResumeOption = None,
    config: ConfigOption = None,
    log_folder: LogFolderOption = Path("logs"),
    store: StoreOption = None,
    export: ExportOption = None,
    progress: ProgressOption = None,
    json: JsonOption = False,
) -> int:
    """Train an agent, and print the best scheme it found.

    It learns from measured latencies and keeps a checkpoint to resume. To compare PPO with random search or the oracle
    under the same budget, use `atoffer search`.

    Example: atoffer train --batch 16 --seq-len 256 --mask strided --budget 128 --export out/scheme
    """
    from atoffer_rl.agents.ppo import PPOSearch, resume_command

    job.check_export_folder(export)
    start = _start(policy, resume)
    if resume is not None:
        refuse_options(
            context, KEPT_BY_RESUME, "--resume goes on with the checkpoint's own workload, policy and folder"
        )
    hyperparameters = _hyperparameters(config, start, {"timesteps": timesteps, "n_envs": n_envs})
    if start is not None and start.resumable:
        workload, seed = Workload.from_json(start.run["workload"]), int(start.run["seed"])
        standalone = bool(start.run["standalone"])
        measurer = str(start.run["measurer"]) if measurer == "auto" else measurer
        if not json:
            _tell_of_limits(hyperparameters, start, budget)
    run_name = job.run_name("ppo", workload, seed)
    with (
        job.opened_measurer(measurer, workload, store, json) as opened,
        _run_log(resume, log_folder, run_name, _command({"--store": store, "--export": export})) as log,
        _told_to_resume(log),
    ):
        session = _session(workload, opened, start, (budget, seconds), standalone, seed, log)
        with job.watched(session, progress, json):
            result = job.searched(PPOSearch(hyperparameters, start), "ppo", session)
        status = job.finish(result, session, export, json)
        if not json and (on := resume_command(log)):
            _tell_of_rest(result.finished, session, hyperparameters.timesteps, on)
        return status


def _command(options: Mapping[str, Path | None]) -> str:
    """What to type to train with the given ones of `options`, which a checkpoint does not keep."""
    given = [(name, str(path)) for name, path in options.items() if path is not None]
    return " ".join([program("atoffer"), "train", *(shlex.quote(word) for option in given for word in option)])


def _run_log(resume: Path | None, parent: Path, name: str, command: str) -> "RunLog":
    """The log of a new run called `name`, or of the run that goes on."""
    from atoffer_rl.agents.log import ANOTHER_FOLDER, RunLog

    if resume is None:
        return RunLog(job.run_folder(parent, name), ANOTHER_FOLDER, command)
    return RunLog(resume.parent, "copy the folder elsewhere, and resume there", command)


@contextmanager
def _told_to_resume(log: "RunLog") -> Iterator[None]:
    """Say how the run goes on where its trials cannot be kept any more."""
    from atoffer_rl.agents.ppo import resume_command

    try:
        yield
    except StoreError as error:
        if not (on := resume_command(log)):
            raise
        raise StoreError(f"{error}; then go on with {on}") from error


def _start(policy: str, resume: Path | None) -> "Checkpoint | None":
    if resume is not None:
        return _resumed(resume)
    return None if policy == RANDOM else read_policy(policy).policy_alone()


def _resumed(path: Path) -> "Checkpoint":
    from atoffer_rl.agents.checkpoint import load_checkpoint
    from atoffer_rl.agents.ppo import CHECKPOINT_FILE
    from atoffer_rl.agents.run_state import check_run

    checkpoint = load_checkpoint(path)
    if not checkpoint.resumable:
        raise PolicyError(f"{path} is a policy, not a checkpoint of a run: use --policy instead of --resume")
    check_run(checkpoint)
    if path.name != CHECKPOINT_FILE:
        remedy = f"name its {CHECKPOINT_FILE}, or use --policy to start another run from this file"
        raise PolicyError(f"{path} cannot be resumed, a run goes on in its own folder: {remedy}")
    return checkpoint


def _hyperparameters(path: Path | None, start: "Checkpoint | None", changes: dict[str, int | None]) -> "PPOConfig":
    from atoffer_rl.agents.hyperparameters import ppo_config

    if path is not None:
        config = ppo_config(changes, path)
        if start is not None and config.hidden != start.hidden:
            remedy = f"set hidden to {start.hidden}, or start a new run from --policy {RANDOM}"
            raise PolicyError(f"{path} has hidden layers of {config.hidden}, the policy of {start.hidden}: {remedy}")
        return config
    kept = dict(start.run["config"]) if start is not None and start.resumable else {}
    return ppo_config(kept | {name: value for name, value in changes.items() if value is not None})


def _tell_of_limits(hyperparameters: "PPOConfig", start: "Checkpoint", budget: int | None) -> None:
    """Say so where the run that goes on has no units, or no steps, left."""
    measured = len(start.run["choices"])
    if budget is not None and budget <= measured:
        print_line(f"the run has measured {measured} choices and measures no more: --budget gives it more")
    if hyperparameters.timesteps <= int(start.run["timesteps"]):
        print_line("the run has taken all its steps and learns no more: --timesteps gives it more")


def _tell_of_rest(finished: bool, session: "Session", timesteps: int, on: str) -> None:
    """Say how a run goes on, with `on`, that stopped before its budget was spent."""
    if not finished:
        print_line(f"go on with {on}")
    elif not session.ledger.exhausted:
        print_line(f"its {timesteps} steps were over before its budget: go on with {on} --timesteps {2 * timesteps}")


def _session(
    workload: Workload,
    measurer: "Measurer",
    start: "Checkpoint | None",
    budget: tuple[int | None, float | None],
    standalone: bool,
    seed: int,
    log: "RunLog",
) -> "Session":
    from atoffer_rl.agents.oracle import known_oracle_us
    from atoffer_rl.agents.run_state import resumed_session

    if start is not None and start.resumable:
        oracle_us = known_oracle_us(workload, measurer, standalone)
        return resumed_session(start, measurer, log=log, oracle_us=oracle_us, units=budget[0], seconds=budget[1])
    return job.new_session(workload, measurer, budget, standalone, seed, log)
