"""Writes the README's generated parts from committed records and from the package itself.

python benchmarks/readme.py            write them
python benchmarks/readme.py --check    exit with 1 if they are not what the README says
"""

import json
import re
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
    from atoffer_rl.kernels.registry import legal_choices, legal_runs
    from atoffer_rl.records import describe
    from atoffer_rl.scheme import count_partitions, count_schemes
    from atoffer_rl.workload import Workload

    workload = Workload()
    counts = {run: len(legal_choices(workload, run)) for run in legal_runs(workload)}
    return (
        f"For {describe(workload)}: {len(counts)} legal runs with {sum(counts.values())} choices, "
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


def results() -> str:
    """What was recorded."""
    return recorded_tables()


def recorded_tables() -> str:
    """The workloads whose complete tables ship with the package."""
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
        "choices",
        "best layer, us",
        "forwards",
        "rank correlation",
        "best sum over best forward",
    ]
    return table(names, rows)


SECTIONS: dict[str, Callable[[], str]] = {"space": space, "commands": commands, "results": results}


def filled(text: str) -> str:
    """`text` with every generated part filled in."""
    for name, section in SECTIONS.items():
        pattern = re.compile(f"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        content = section() + "\n"
        text = pattern.sub(lambda match, content=content: match[1] + content + match[2], text)  # type: ignore[misc]
    return text


def main() -> int:
    """Write or check the README."""
    text = README.read_text()
    wanted = filled(text)
    if "--check" in sys.argv[1:]:
        return int(text != wanted)
    README.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
