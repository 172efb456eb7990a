"""Writes the README's generated parts from committed records and from the package itself.

python benchmarks/readme.py            write them, and draw the picture that one of them shows
python benchmarks/readme.py --check    exit with 1 if they, or the picture, are not what is there
"""

import io
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "search.svg"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def load(name: str) -> Any:
    """The committed record called `name`."""
    return json.loads((RESULTS / name).read_text())


def percent(share: float) -> str:
    """A share in percent."""
    return f"{share:.1%}"


def space() -> str:
    """How large the choice is, for the default workload."""
    from atoffer_rl.kernels.legal_space import LegalSpace
    from atoffer_rl.records import describe
    from atoffer_rl.scheme import count_partitions, count_schemes
    from atoffer_rl.workload import Workload

    legal = LegalSpace(Workload())
    counts = {run: len(legal.choices(run)) for run in legal.runs}
    return (
        f"For {describe(legal.workload)}: {len(counts)} legal runs with {sum(counts.values())} choices, "
        f"{count_partitions(frozenset(counts)):,} partitions, {count_schemes(counts):.1e} schemes "
        "(`atoffer schemes --count`)."
    )


def commands() -> str:
    """Every command with the first line of its help."""
    import typer

    from atoffer_rl.cli.app import app

    group: Any = typer.main.get_command(app)
    rows = [
        (f"`atoffer {name}`", str(command.help).strip().splitlines()[0]) for name, command in group.commands.items()
    ]
    return table(["command", "does"], rows)


def output() -> str:
    """What the searches of the picture printed at their end."""
    found = load("search.json")
    ppo, random = found["ppo"], found["random"]
    rows = [
        ("unfused", ppo["unfused_us"]),
        (f"random search, {random['units']} units", random["latency_us"]),
        (f"PPO's recommendation, {ppo['units']} units", ppo["latency_us"]),
        ("PPO's own rollout", ppo["rollout_us"]),
        ("the best there is", ppo["oracle_us"]),
    ]
    cells = [(name, f"{value:.1f}", percent(value / ppo["oracle_us"] - 1)) for name, value in rows]
    return table(["scheme", "layer latency, us", "regret"], cells)


def search() -> str:
    """A picture of the best known latency as the budget is spent."""
    from atoffer_rl.records import describe, table_for
    from atoffer_rl.workload import Workload

    workload = Workload.from_json(load("search.json")["ppo"]["workload"])
    where = f"{describe(workload)}, recorded on {table_for(workload).device.name}"
    return f"![Best known latency over units spent, PPO and random search](docs/search.svg)\n\n{where}, seed 0."


def draw_search(found: dict[str, Any]) -> bytes:
    """What `docs/search.svg` holds; one version of Matplotlib always draws the same."""
    from atoffer_rl.figures import new_figure

    figure = new_figure(7, 3.4)
    from matplotlib import rc_context
    from matplotlib.ticker import LogLocator, NullLocator

    axes = figure.add_subplot()
    for name, label in (("random", "random search"), ("ppo", "PPO")):
        units, _, best_us = zip(*found[name]["history"], strict=True)
        axes.step(units, [value / found[name]["oracle_us"] for value in best_us], where="post", label=label)
    axes.axhline(1.0, color="black", linestyle=":", label="the best there is")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="units: segment choices measured", ylabel="best known latency\nover the best there is")
    axes.legend()
    drawn = io.BytesIO()
    with rc_context({"svg.hashsalt": "search"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()


def results() -> str:
    """What was recorded: searches over seeds, attention and the encoder beside their peers, the shipped tables."""
    return "\n\n".join(part for part in (seeds(), attention(), encoders(), recorded_tables()) if part)


def seeds() -> str:
    """The agent and random search over seeds, from the record of `benchmarks/train_seeds.py`."""
    name = "train_seeds.json"
    record = load(name)
    rows = [
        ("the agent's recommendation", percent(record["median_recommendation_regret"])),
        ("the agent's own rollout", percent(record["median_rollout_regret"])),
        ("its rollout before training", percent(record["median_rollout_before_regret"])),
        ("a rollout of random weights", percent(record["median_rollout_random_weights_regret"])),
        ("random search's recommendation", percent(record["median_random_search_regret"])),
        ("a random scheme", percent(record["median_random_scheme_regret"])),
    ]
    return (
        f"Default workload, {record['rows'][0]['budget']} units (a tenth of the table), {record['seeds']} seeds "
        f"([record](benchmarks/results/{name})); the agent's recommendation beats random search's in "
        f"{record['better_than_random_search']} of them, its rollout that of random weights in "
        f"{record['better_than_random_weights']}. Rollouts choose among what the run measured:\n\n"
        f"{table(['scheme', 'median regret'], rows)}"
    )


def attention() -> str:
    """Speedups by cell, of every committed record of `atoffer bench mha`; empty if there is none."""
    from atoffer_rl.bench.grids import GRIDS

    parts = [
        part for grid in GRIDS for path in sorted(RESULTS.glob(f"mha_{grid}_*.json")) if (part := cells(grid, path))
    ]
    if not parts:
        return ""
    intro = "Speedups of attention over the fastest peer of each cell, in one run (`atoffer bench mha --grid NAME`):"
    return "\n\n".join([intro, *parts])


def cells(grid: str, path: Path) -> str:
    """The cells of one record of `grid`; empty if it has none yet."""
    from atoffer_rl.bench.record import means_of, speedup_table

    record = load(path.name)
    rows = [row for row in record["rows"] if row["speedup"]]
    if not rows:
        return ""
    columns, lines = speedup_table(record["rows"])
    dtypes = "/".join(sorted({row["dtype"] for row in rows}))
    return (
        f"Grid {grid} on {record['device']} ({dtypes}, torch {record['versions']['torch']}): {means_of(rows)} "
        f"([record](benchmarks/results/{path.name})):\n\n{table(columns, lines)}"
    )


def encoders() -> str:
    """Ours and peers on whole encoders, every committed record of `atoffer bench encoder`."""
    from atoffer_rl.bench.record import table_of

    parts = []
    for path in sorted(RESULTS.glob("encoder*.json")):
        record = load(path.name)
        columns, lines = table_of(record["rows"])
        versions = record["versions"]
        parts.append(
            f"Whole encoders on {record['device']}, torch {versions['torch']}, us a forward, in one run "
            f"([record](benchmarks/results/{path.name})):\n\n{table(columns, lines)}"
        )
    return "\n\n".join(parts)


def recorded_tables() -> str:
    """The workloads whose complete tables ship with the package, and how well sums predict their forwards."""
    from atoffer_rl import records
    from atoffer_rl.table_summary import check_sums, latencies

    rows = []
    for shipped in records.recorded_tables():
        for workload in shipped.header.workloads:
            check = check_sums(shipped, workload)
            rows.append(
                (
                    workload.batch,
                    workload.seq_len,
                    workload.mask,
                    workload.dtype,
                    len(latencies(shipped.segments(workload))),
                    f"{check.oracle_us:.1f}",
                    check.forwards,
                    f"{check.rank_correlation:.3f}",
                    percent(check.oracle_excess),
                )
            )
    names = [
        "B",
        "S",
        "mask",
        "format",
        "choices that run",
        "best layer, us",
        "forwards",
        "rank correlation",
        "best sum over best forward",
    ]
    return (
        "Recorded tables (rank correlation of summed segments with whole measured forwards; the last column says how "
        "much slower the best sum is than the best of the top 32, as whole forwards; `atoffer records check`):\n\n"
        f"{table(names, rows)}"
    )


SECTIONS: dict[str, Callable[[], str]] = {
    "output": output,
    "search": search,
    "results": results,
    "space": space,
    "commands": commands,
}


def filled(text: str) -> str:
    """`text` with every generated part filled in."""
    for name, section in SECTIONS.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}{section()}\n{end}{after}"
    return text


def main() -> int:
    """Write or check the README and its picture."""
    text = README.read_text()
    wanted, picture = filled(text), draw_search(load("search.json"))
    if "--check" in sys.argv[1:]:
        return int(text != wanted or not PICTURE.exists() or PICTURE.read_bytes() != picture)
    README.write_text(wanted)
    PICTURE.write_bytes(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
