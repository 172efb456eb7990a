"""Writes the README's generated parts from committed records and from the package itself, and what it links to.

python benchmarks/readme.py            write them, the picture that one of them shows, and docs/attention.md
python benchmarks/readme.py --check    exit with 1 if one of these is not what is there
"""

import argparse
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoffer_rl.workload import Workload

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
HEADLINE_GRID = "mha_paper_h200.json"
PICTURE = ROOT / "docs" / "search.svg"
DETAILS = ROOT / "docs" / "attention.md"
EARLIER = ", of earlier kernels"
OVERLAP = "ours begins while the one before ends, as in a layer after a generated kernel; PyTorch's does not"


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


def headline() -> str:
    """What a person gets: a layer, its attention and a search, each in a line."""
    return "\n".join(f"- {line}" for line in (layer_line(), attention_line(), search_line()))


def layer_line() -> str:
    """What fusion is worth."""
    from atoffer_rl.workload import Workload

    found = load("search.json")
    agent, workload = found["ppo"], Workload.from_json(found["ppo"]["workload"])
    where = f"B {workload.batch}, S {workload.seq_len}, {workload.mask}, {workload.dtype}, on {found['device']}"
    return (
        f"**A layer** ({where}): {agent['latency_us']:.0f} us as the agent found it, "
        f"{unfused_best_us(workload):.0f} us with the fastest kernel for each operator and no fusion."
    )


def attention_line() -> str:
    """What attention is worth beside peers."""
    from atoffer_rl.bench.record import geometric_mean

    record = load(HEADLINE_GRID)
    rows = record["rows"]
    speedups = [row["speedup"] for row in rows]
    return (
        f"**Its attention** (strided and fixed, {len(rows)} shapes, on {record['device']}{age_of(record)}): "
        f"{geometric_mean(rows):.2f} "
        "times as fast as the fastest of FlexAttention, SDPA and torch.compile in the same run, "
        f"{min(speedups):.2f} to {max(speedups):.2f} times (geometric mean, smallest, largest)."
    )


def search_line() -> str:
    """What the agent is worth beside random search."""
    from atoffer_rl.kernels.legal_space import LegalSpace
    from atoffer_rl.workload import Workload

    record = load("train_seeds.json")
    choices = len(LegalSpace(Workload.from_json(record["workload"])).all_choices)
    return (
        f"**The search**: {record['rows'][0]['budget']} of {choices} choices measured, and the layer takes "
        f"{percent(record['median_recommendation_regret'])} longer than with the best there is; random search's "
        f"{percent(record['median_random_search_regret'])} (medians of {record['seeds']} seeds)."
    )


def unfused_best_us(workload: "Workload") -> float:
    """The least sum of recorded kernels of one operator each."""
    from atoffer_rl.operators import OPERATORS
    from atoffer_rl.records import table_for
    from atoffer_rl.run import Run
    from atoffer_rl.table_summary import latencies

    found = latencies(table_for(workload).segments(workload))
    runs = [Run(operator.index, operator.index) for operator in OPERATORS]
    return sum(min(us for choice, us in found.items() if choice.run == run) for run in runs)


def output() -> str:
    """What the searches of the picture printed at their end."""
    from atoffer_rl.workload import Workload

    found = load("search.json")
    ppo, random = found["ppo"], found["random"]
    rows = [
        ("unfused, as the search begins: the most robust kernels", ppo["unfused_us"]),
        ("unfused, the fastest kernel of each operator", unfused_best_us(Workload.from_json(ppo["workload"]))),
        (f"random search, {random['units']} units", random["latency_us"]),
        (f"PPO's recommendation, {ppo['units']} units", ppo["latency_us"]),
        ("PPO's own rollout", ppo["rollout_us"]),
        ("the best there is", ppo["oracle_us"]),
    ]
    cells = [(name, f"{value:.1f}", percent(value / ppo["oracle_us"] - 1)) for name, value in rows]
    return table(["scheme", "layer latency, us", "regret"], cells)


def search() -> str:
    """A picture of the best known latency as the budget is spent."""
    from atoffer_rl.records import describe
    from atoffer_rl.workload import Workload

    found = load("search.json")
    where = f"{describe(Workload.from_json(found['ppo']['workload']))}, recorded on {found['device']}"
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


SEARCHED = {
    "recommendation": "the agent's recommendation",
    "without_learning": "that of the policy it begins with, which searches without learning",
    "rule": "that of the rule which the policy was first taught (expected improvement)",
    "random_search": "random search's recommendation",
    "random_scheme": "a random scheme",
    "rollout": "the agent's own rollout, of what its run measured",
    "rollout_before": "a rollout of the policy it begins with, of the same",
    "rollout_random_weights": "a rollout of random weights, of the same",
}


def seeds() -> str:
    """The agent and random search over seeds, from the record of `benchmarks/train_seeds.py`."""
    name = "train_seeds.json"
    record = load(name)
    rows = [(meaning, percent(record[f"median_{name}_regret"])) for name, meaning in SEARCHED.items()]
    return (
        f"Default workload, {record['rows'][0]['budget']} units (a tenth of the table), {record['seeds']} seeds "
        f"([record](benchmarks/results/{name})); the agent's recommendation beats random search's in "
        f"{record['better_than_random_search']} of them, its rollout that of random weights in "
        f"{record['better_than_random_weights']}. Rollouts choose among what the run measured:\n\n"
        f"{table(['scheme', 'median regret'], rows)}"
    )


def grid_paths() -> list[tuple[str, Path]]:
    """Every committed record with rows of a grid of `atoffer bench mha`, with the grid's name, in the grids' order."""
    from atoffer_rl.bench.grids import GRIDS

    named = re.compile(rf"mha_({'|'.join(GRIDS)})_[^_]+")
    paths = {path: found[1] for path in sorted(RESULTS.glob("mha_*.json")) if (found := named.fullmatch(path.stem))}
    return [(grid, path) for grid in GRIDS for path, name in paths.items() if name == grid and load(path.name)["rows"]]


def attention() -> str:
    """Speedups by cell, of every committed record of `atoffer bench mha`; empty if there is none."""
    parts = [part for grid, path in grid_paths() if (part := grid_part(grid, path))]
    if not parts:
        return ""
    rows = [row for _, path in grid_paths() for row in load(path.name)["rows"]]
    intro = (
        "Speedups of attention over the fastest peer of each cell, in one run (`atoffer bench mha --grid NAME`); "
        f"below 1 the peer is faster. Launches follow one another: {OVERLAP}. "
        "[Another table](docs/attention.md) has latencies, errors and choices. "
        f"{peers_of(rows)}"
    )
    return "\n\n".join([intro, *parts])


def attention_details() -> str:
    """The whole of docs/attention.md."""
    from atoffer_rl.bench.record import details_table
    from atoffer_rl.bench.record_file import grid_rows

    intro = (
        "Written by `benchmarks/readme.py` from the records of `atoffer bench mha --grid NAME`: latencies are medians "
        f"of one run, of launches one after another ({OVERLAP}); the floor is what reading queries, keys and values "
        "and writing the result once takes, or 2 us, what a small kernel might take, where that is more; of the errors "
        "on random inputs and with logits scaled by 100 the larger one is shown."
    )
    parts = ["# Attention, cell by cell", intro]
    for grid, path in grid_paths():
        rows, missing = grid_rows(grid, load(path.name)["rows"])
        parts += [f"## {title_of(grid, path, missing)}", table(*details_table(rows))]
    return "\n\n".join(parts) + "\n"


def peers_of(rows: Iterable[Any]) -> str:
    """Who was timed, and who was not installed."""
    timed, absent = dict[str, None](), dict[str, None]()
    for row in rows:
        timed |= dict.fromkeys(row["peers"])
        absent |= dict.fromkeys(name for name, why in row["peer_errors"].items() if why.endswith("is not installed"))
    said = (
        f"Peers: {', '.join(timed)}, each with the fastest of the options it is tried with "
        "(Flex N is FlexAttention with a BlockMask of N)"
    )
    return f"{said}; not installed: {', '.join(absent)}." if absent else f"{said}."


def grid_part(grid: str, path: Path) -> str:
    """What one record of `grid` says; empty if it has no row yet."""
    from atoffer_rl.bench.record import means_of, speedup_table
    from atoffer_rl.bench.record_file import grid_rows

    rows, missing = grid_rows(grid, load(path.name)["rows"])
    known = [row for row in rows if row["speedup"]]
    if not known:
        return ""
    said = f"{means_of(known)} ([record](benchmarks/results/{path.name}))"
    return f"{title_of(grid, path, missing)}: {said}:\n\n{table(*speedup_table(rows))}"


def title_of(grid: str, path: Path, missing: int) -> str:
    """A record of `grid` in a few words: where it was taken, with what, and how many cells it lacks."""
    record = load(path.name)
    dtypes = "/".join(sorted({row["dtype"] for row in record["rows"]}))
    lacks = f", {missing} cells not measured yet" if missing else ""
    return f"Grid {grid} on {record['device']} ({dtypes}, torch {record['versions']['torch']}{age_of(record)}{lacks})"


def age_of(record: dict[str, Any]) -> str:
    """What is said of a record of `bench mha` that was taken with other kernels than those that are here.

    Its shortest and its longest cell are compared.
    """
    from atoffer_rl.bench.cells import IDENTITY, choices_hash
    from atoffer_rl.device import DEFAULT_DEVICE, KNOWN_DEVICES
    from atoffer_rl.workload import Workload

    device = {device.name: device for device in KNOWN_DEVICES}.get(record["device"], DEFAULT_DEVICE)
    by_length = sorted(record["rows"], key=lambda row: row["seq_len"])
    current = all(
        row["ours_source"] == choices_hash(Workload(**{name: row[name] for name in IDENTITY}), device)
        for row in (by_length[0], by_length[-1])
    )
    return "" if current else EARLIER


def age_of_encoders(rows: Sequence[dict[str, Any]]) -> str:
    """The same of rows of `bench encoder`."""
    from atoffer_rl.bench.cells import IDENTITY, programs_hash
    from atoffer_rl.bench.grids import BEYOND_ATTENTION
    from atoffer_rl.scheme import Scheme
    from atoffer_rl.workload import Workload

    def hash_now(row: dict[str, Any]) -> str:
        workload = Workload(**{name: row[name] for name in (*IDENTITY, *BEYOND_ATTENTION)})
        return programs_hash(workload, Scheme.from_json(row["ours_scheme"]).choices)

    return "" if all(row.get("ours_source") == hash_now(row) for row in rows) else EARLIER


def encoders() -> str:
    """Ours and peers on whole encoders, every committed record of `atoffer bench encoder`."""
    from atoffer_rl.bench.record import table_of

    parts = []
    for path in sorted(RESULTS.glob("encoder*.json")):
        record = load(path.name)
        columns, lines = table_of(record["rows"])
        versions, age = record["versions"], age_of_encoders(record["rows"])
        parts.append(
            f"Whole encoders on {record['device']}, torch {versions['torch']}, us a forward, in one run{age} "
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
    "headline": headline,
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
    """Write or check the README and what it links to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    wanted = {
        README: filled(README.read_text()).encode(),
        PICTURE: draw_search(load("search.json")),
        DETAILS: attention_details().encode(),
    }
    if options.check:
        return int(any(not path.exists() or path.read_bytes() != content for path, content in wanted.items()))
    for path, content in wanted.items():
        path.write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
