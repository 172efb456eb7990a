"""`atoffer records`: the recorded tables and the trial store."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from atoffer_rl.cli.options import JsonOption, StoreOption, options_of
from atoffer_rl.cli.output import print_json, print_line, print_table
from atoffer_rl.cli.record import sentence, summary
from atoffer_rl.errors import NotRecorded, StoreError
from atoffer_rl.records import RECORDS_FOLDER, describe, load_table, table_paths
from atoffer_rl.store import Store, read_jsonl
from atoffer_rl.table_summary import check_sums

app = typer.Typer(
    help="Look after recorded tables and live trials.\n\nExample: atoffer records list", no_args_is_help=True
)
FolderOption = Annotated[
    Path,
    typer.Option(
        "--folder", metavar="FOLDER", show_default=False, help="Where the tables are. [default: those of the package]"
    ),
]


@app.command("list")
def list_command(*, store: StoreOption = None, folder: FolderOption = RECORDS_FOLDER, json: JsonOption = False) -> None:
    """List recorded workloads, and what the store holds.

    The options name the workload in other commands. A workload whose mask file cannot be read from here is left out.

    Example: atoffer records list
    """
    columns = ["file", "device", "workload", "choices", "failed", "forwards"]
    rows, shown = [], []
    for path in (paths := _tables(folder)):
        table = load_table(path)
        for workload in table.header.workloads:
            segments = table.segments(workload)
            rows.append(
                {
                    "file": path.name,
                    "table": table.header.table,
                    "device": table.device.name,
                    "workload": describe(workload),
                    "choices": len(segments),
                    "failed": sum(not trial.ok for trial in segments.values()),
                    "forwards": len(table.forwards(workload)),
                }
            )
            shown.append((*(rows[-1][column] for column in columns), options_of(workload)))
    counts = _store_counts(store)
    if json:
        print_json({"tables": rows, "store": {"path": str(_store_path(store)), "trials": counts}})
        return
    if paths:
        print_table([*columns, "options"], shown)
    else:
        print_line(f"no recorded tables in {folder}")
    print_line(f"store {_store_path(store)}: {', '.join(f'{n} {what}' for what, n in counts.items()) or 'empty'}")


def _tables(folder: Path) -> tuple[Path, ...]:
    if not folder.is_dir():
        raise StoreError(f"there is no folder {folder}: name one that holds recorded tables")
    return table_paths(folder)


def _store_path(path: Path | None) -> Path:
    from atoffer_rl.kernels.measurers.open import default_store

    return path or default_store()


def _store_counts(path: Path | None) -> dict[str, int]:
    if path is None and not _store_path(path).exists():
        return {}  # who has measured nothing yet has no store
    with Store(_store_path(path), read_only=True) as store:
        return dict(sorted(Counter(f"{trial.kind} {trial.status.value}" for trial in store.trials()).items()))


@app.command("check")
def check_command(*, folder: FolderOption = RECORDS_FOLDER, json: JsonOption = False) -> None:
    """Check recorded trials against the sources of today.

    Says which are of sources that have changed since, and how well sums predict forwards.

    Example: atoffer records check
    """
    from atoffer_rl.kernels.legal_space import LegalSpace
    from atoffer_rl.kernels.stale import staleness

    report = []
    if not (paths := _tables(folder)):
        raise StoreError(f"there are no recorded tables in {folder}: name a folder that holds some")
    for path in paths:
        table = load_table(path)
        for workload in table.header.workloads:
            entry = {"file": path.name, "workload": describe(workload), **vars(staleness(table, workload))}
            try:
                sums = check_sums(table, workload, LegalSpace(workload, table.device))
                entry |= {"sums": summary(sums), "sentence": sentence(sums)}
            except NotRecorded as error:
                entry |= {"sums": None, "sentence": str(error)}
            report.append(entry)
    if json:
        print_json(report)
        return
    for entry in report:
        print_line(f"{entry['file']}, {entry['workload']}:")
        changed = ", ".join(f"{name} {count}" for name, count in entry["changed"].items()) or "none"
        print_line(f"  trials of sources that have changed since: {changed}")
        print_line(f"  choices that are legal now and not recorded: {entry['missing']}")
        print_line(f"  {entry['sentence']}")


@app.command("export")
def export_command(
    *,
    path: Annotated[Path, typer.Argument(help="File to write, one JSON trial a line.")],
    store: StoreOption = None,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave out trials that cannot be read, and say how many they are.")
    ] = False,
) -> None:
    """Write the store's trials as JSON lines.

    Example: atoffer records export trials.jsonl
    """
    skipped: list[StoreError] = []
    with Store(_store_path(store), read_only=True, salvage=skip_damaged) as opened:
        count = opened.export_jsonl(path, skipped.append if skip_damaged else None)
    typer.echo(f"{count} trials written to {path}", err=not path.is_file())
    if skipped:
        typer.echo(f"{len(skipped)} damaged trials left out", err=True)


@app.command("import")
def import_command(
    *,
    path: Annotated[Path, typer.Argument(help="File that records export wrote.")],
    store: StoreOption = None,
) -> None:
    """Add the trials of a file of JSON lines to the store.

    Those that it already holds are left out.

    Example: atoffer records import trials.jsonl --store trials.db
    """
    trials = list(read_jsonl(path))  # before a store is made for them
    if not trials:
        raise StoreError(f"{path} holds no trials: give a file that atoffer records export wrote")
    with Store(_store_path(store)) as opened:
        added = opened.add_all(trials)
    known = f", {len(trials) - added} were there already" if added < len(trials) else ""
    print_line(f"{added} trials added to {_store_path(store)}{known}")
