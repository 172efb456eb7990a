"""`atoffer bench`: ours and peers, one run, the same inputs, the same timing."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoffer_rl.agents.registry import LIVE_SEARCHERS, searcher_named
from atoffer_rl.bench.grids import BEYOND_ATTENTION, GRIDS, grid_workloads
from atoffer_rl.cli.options import (
    MAX_BUDGET,
    SEQUENCE_NAMES,
    StandaloneOption,
    StoreOption,
    at_most,
    refuse_options,
    workload_options,
)
from atoffer_rl.cli.output import print_line, print_table
from atoffer_rl.cli.scheme_source import read_scheme
from atoffer_rl.cli.search_job import opened_measurer
from atoffer_rl.errors import AtofferError, LaunchError
from atoffer_rl.scheme import Scheme
from atoffer_rl.workload import Workload

if TYPE_CHECKING:
    from atoffer_rl.bench.mha_run import MhaRun

app = typer.Typer(
    help="Time ours beside PyTorch on this GPU.\n\n"
    "PyTorch runs eager and compiled, with SDPA and with FlexAttention.\n\n"
    "Example: atoffer bench encoder --batch 16 --seq-len 256 --mask strided",
    no_args_is_help=True,
)

full_sequences = partial(workload_options, without=SEQUENCE_NAMES)
"""The peers take no sequence lengths."""
attention_alone = partial(workload_options, without=(*SEQUENCE_NAMES, *BEYOND_ATTENTION))
"""Nor does attention heed what the rest of an encoder is made of."""
RecordOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Also write the record, with all samples, here.")
]
ReplaysOption = Annotated[int, typer.Option(metavar="N", min=20, help="Samples of each contender.")]


@app.command("mha")
@attention_alone
def mha(
    *,
    context: typer.Context,
    workload: Workload,
    grid: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Cells to run instead of the one workload: {', '.join(GRIDS)}."),
    ] = None,
    replays: ReplaysOption = 30,
    jobs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Cells prepared side by side; as many as there are CPUs by default."),
    ] = None,
    store: StoreOption = None,
    json: RecordOption = None,
) -> None:
    """Time attention alone.

    It reaches from the fused QKV projection to merged heads. The same --json again goes on where it stopped.

    Example: atoffer bench mha --grid paper --json mha_paper.json
    """
    from atoffer_rl.bench.mha_run import MhaRun
    from atoffer_rl.bench.record import cells_table, summary_of
    from atoffer_rl.kernels.compile_pool import usable_cpus

    if grid is not None:
        _check_grid(context, grid)
    bench = MhaRun([workload] if grid is None else grid_workloads(grid, workload), json, print_line)
    try:
        _run_cells(bench, replays, jobs or usable_cpus(), store)
    finally:
        if bench.rows:
            print_table(*cells_table(bench.rows))
            print_line(summary_of(bench.rows))
        bench.finish()
    if missing := len(bench.todo):
        raise LaunchError(f"{missing} of {missing + len(bench.rows)} cells have no row: the lines above say why")


def _check_grid(context: typer.Context, name: str) -> None:
    """Accept a grid, and options that it heeds.

    Raises:
        AtofferError: If there is no such grid, or it fixes what the command line gives.
    """
    if name not in GRIDS:
        raise AtofferError(f"unknown grid {name!r}: use one of {', '.join(GRIDS)}")
    refuse_options(context, GRIDS[name].fixed, f"grid {name} says which cells it has")


def _run_cells(bench: "MhaRun", replays: int, jobs: int, store: Path | None) -> None:
    from atoffer_rl.kernels.measurers.open import open_measurer

    if not bench.todo:
        return
    measurer, line = open_measurer("cuda", bench.todo[0], store)
    print_line(line)
    try:
        cells = bench.find_cells(measurer)
    finally:
        measurer.close()  # its process's memory is the waves' from here on
    bench.run(cells, replays, jobs)


@app.command("encoder")
@full_sequences
def encoder(
    *,
    context: typer.Context,
    workload: Workload,
    scheme: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON file with our scheme; by default it is searched for, live."),
    ] = None,
    searcher: Annotated[
        str,
        typer.Option(metavar="NAME", help=f"Who searches where no scheme is given: {', '.join(LIVE_SEARCHERS)}."),
    ] = "ppo",
    budget: Annotated[
        int,
        typer.Option(metavar="N", min=0, callback=at_most(MAX_BUDGET), help="New choices that the search measures."),
    ] = 128,
    standalone: StandaloneOption = False,
    replays: ReplaysOption = 30,
    store: StoreOption = None,
    json: RecordOption = None,
) -> None:
    """Time a whole encoder forward.

    Ours runs under a scheme that is found live or given.

    Example: atoffer bench encoder --batch 16 --seq-len 256 --mask strided --json encoder.json
    """
    from atoffer_rl.bench.cells import device_here
    from atoffer_rl.bench.record import record_of, table_of, write_record
    from atoffer_rl.bench.record_file import check_encoder_target
    from atoffer_rl.kernels.legal_space import LegalSpace

    _check_search(context, scheme, searcher)
    if json is not None:
        check_encoder_target(json)
    device = device_here()
    if scheme is not None:
        chosen = read_scheme(scheme, LegalSpace(workload, device))
    else:
        chosen = _search(workload, store, searcher, budget, standalone)
    from atoffer_rl.bench.encoder import bench_encoder

    row = bench_encoder(workload, chosen, replays)
    if json is not None:
        write_record(json, record_of([row]))
    _report(row)
    print_table(*table_of([row]))


def _check_search(context: typer.Context, scheme: Path | None, searcher: str) -> None:
    """Accept a searcher that can search live, or a scheme instead of a search.

    Raises:
        AtofferError: If it cannot, or there is a scheme and options of a search.
    """
    if scheme is not None:
        refuse_options(context, ("searcher", "budget", "standalone", "store"), "with --scheme nothing is searched for")
    elif searcher not in LIVE_SEARCHERS:
        raise AtofferError(f"{searcher!r} cannot search live: use --searcher {' or '.join(LIVE_SEARCHERS)}")


def _search(workload: Workload, store: Path | None, searcher: str, budget: int, standalone: bool) -> Scheme:
    from atoffer_rl.agents.session import Session
    from atoffer_rl.kernels.ledger import Ledger

    with opened_measurer("cuda", workload, store, quiet=False) as measurer:
        result = searcher_named(searcher)(Session(Ledger(workload, measurer, budget, standalone=standalone)))
    print_line(f"{searcher} found {result.latency_us:.1f} us a layer with {result.units} units")
    return result.scheme


def _report(row: dict[str, Any]) -> None:
    for name, reason in row["peer_errors"].items():
        print_line(f"{name} cannot run {row['mask']} at B {row['batch']}, S {row['seq_len']}: {reason}")
