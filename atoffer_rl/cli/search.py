"""`atoffer search`: any searcher under the same budget and log format."""

from pathlib import Path
from typing import Annotated

import typer

from atoffer_rl.agents.registry import SEARCHERS, searcher_named
from atoffer_rl.cli import search_job as job
from atoffer_rl.cli.options import (
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
    refuse_options,
    workload_options,
)
from atoffer_rl.workload import Workload


@workload_options
def command(
    *,
    context: typer.Context,
    workload: Workload,
    searcher: Annotated[str, typer.Option(metavar="NAME", help=f"Who searches: {', '.join(SEARCHERS)}.")] = "random",
    measurer: MeasurerOption = "auto",
    budget: BudgetOption = None,
    seconds: SecondsOption = None,
    standalone: StandaloneOption = False,
    seed: SeedOption = 0,
    log_folder: LogFolderOption = Path("logs"),
    store: StoreOption = None,
    export: ExportOption = None,
    progress: ProgressOption = None,
    json: JsonOption = False,
) -> int:
    """Search with any searcher, to compare them.

    All have the same budget and recommend the best of what was measured. ppo is `atoffer train` with the shipped
    policy and hyperparameters; oracle measures every recorded choice.

    Example: atoffer search --searcher oracle --measurer replay --batch 16 --seq-len 256 --mask strided
    """
    from atoffer_rl.agents.log import RunLog

    if searcher == "oracle":
        refuse_options(context, ("budget", "seconds"), "the oracle measures everything")
    job.check_export_folder(export)
    chosen = searcher_named(searcher)
    run_name = job.run_name(searcher, workload, seed)
    with (
        job.opened_measurer(measurer, workload, store, json) as opened,
        RunLog(job.run_folder(log_folder, run_name)) as log,
    ):
        log.remedy = "what was measured is kept, mend that and search again"
        session = job.new_session(workload, opened, (budget, seconds), standalone, seed, log)
        with job.watched(session, progress, json):
            result = job.searched(chosen, searcher, session)
        return job.finish(result, session, export, json)
