"""`atoffer eval`: what a policy proposes for a workload, or finds under a budget, without learning."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from atoffer_rl.cli import search_job as job
from atoffer_rl.cli.options import (
    MAX_BUDGET,
    JsonOption,
    MeasurerOption,
    SeedOption,
    StandaloneOption,
    StoreOption,
    at_most,
    refuse_options,
    workload_options,
)
from atoffer_rl.cli.policy_source import read_policy
from atoffer_rl.cli.search_report import report_proposal, report_rollout
from atoffer_rl.workload import Workload

if TYPE_CHECKING:
    from atoffer_rl.agents.checkpoint import Checkpoint
    from atoffer_rl.agents.session import Session
    from atoffer_rl.kernels.measurers.protocol import Measurer


@workload_options
def command(
    *,
    context: typer.Context,
    workload: Workload,
    policy: Annotated[
        str,
        typer.Option("--policy", metavar="POLICY", help="Policy or checkpoint.zip; shipped for the one that ships."),
    ] = "shipped",
    budget: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            callback=at_most(MAX_BUDGET),
            help="Choices the policy may measure before it builds its scheme; with 0 it proposes one unseen.",
        ),
    ] = 0,
    measurer: MeasurerOption = "auto",
    standalone: StandaloneOption = False,
    seed: SeedOption = 0,
    store: StoreOption = None,
    json: JsonOption = False,
) -> int:
    """Let a policy build its scheme; say how good it is.

    A checkpoint of a run on this workload, standalone or not alike, builds it of what that run measured.

    Example: atoffer eval --policy logs/RUN/checkpoint.zip --measurer replay --mask strided
    """
    from atoffer_rl.agents.evaluation import evaluate
    from atoffer_rl.agents.run_state import check_run

    checkpoint = read_policy(policy)
    if checkpoint.resumable:
        check_run(checkpoint)
    if _is_of_this(checkpoint, workload, standalone):
        refuse_options(context, ("seed",), "the checkpoint's run on this workload has a seed of its own")
    with job.opened_measurer(measurer, workload, store, json) as opened:
        session = _session(checkpoint, workload, opened, budget, standalone, seed)
        report = report_rollout if session.ledger.units else report_proposal
        result = job.searched(partial(evaluate, checkpoint), "eval", session)
        return job.finish(result, session, None, json, report)


def _session(
    checkpoint: "Checkpoint", workload: Workload, measurer: "Measurer", budget: int, standalone: bool, seed: int
) -> "Session":
    from atoffer_rl.agents.log import RunLog
    from atoffer_rl.agents.oracle import known_oracle_us
    from atoffer_rl.agents.run_state import resumed_session

    if _is_of_this(checkpoint, workload, standalone):
        measured = len(checkpoint.run["choices"])
        oracle_us = known_oracle_us(workload, measurer, standalone)
        return resumed_session(checkpoint, measurer, oracle_us=oracle_us, units=measured + budget)
    return job.new_session(workload, measurer, (budget, None), standalone, seed, RunLog())


def _is_of_this(checkpoint: "Checkpoint", workload: Workload, standalone: bool) -> bool:
    """Whether `checkpoint` is of a run on `workload`, standalone or not alike."""
    run = checkpoint.run
    return bool(run) and (Workload.from_json(run["workload"]), bool(run["standalone"])) == (workload, standalone)
