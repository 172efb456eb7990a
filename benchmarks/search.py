"""One search by PPO and one by random search under the default budget, as their logs recorded them.

python benchmarks/search.py    writes benchmarks/results/search.json, which the README draws
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from atoffer_rl.bench.record import write_record
from atoffer_rl.bench.script import run_script
from atoffer_rl.records import table_for
from atoffer_rl.workload import Workload

RESULTS = Path(__file__).parent / "results"


def logged(command: list[str]) -> Any:
    """The result that an `atoffer` command wrote into its log folder."""
    with TemporaryDirectory() as folder:
        words = ["--measurer", "replay", "--seed", "0", "--log-folder", folder]
        call = f"import sys; from atoffer_rl.cli.app import run; sys.exit(run({[*command, *words]!r}))"
        subprocess.run([sys.executable, "-c", call], check=True)
        return json.loads(next(Path(folder).rglob("result.json")).read_text())


def main() -> None:
    """Run both, and write what they found."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    table = table_for(Workload())
    searches = {"ppo": logged(["train"]), "random": logged(["search", "--searcher", "random"])}
    write_record(RESULTS / "search.json", {"device": table.device.name, "table": table.header.table} | searches)


if __name__ == "__main__":
    run_script(main)
