"""One search by PPO and one by random search under the default budget, as their logs recorded them.

python benchmarks/search.py    writes benchmarks/results/search.json, which the README draws
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

RESULTS = Path(__file__).parent / "results"


def logged(command: list[str]) -> Any:
    """The result that an `atoffer` command wrote into its log folder."""
    with TemporaryDirectory() as folder:
        words = ["--measurer", "replay", "--seed", "0", "--log-folder", folder]
        call = f"import sys; from atoffer_rl.cli.app import run; sys.exit(run({[*command, *words]!r}))"
        subprocess.run([sys.executable, "-c", call], check=True)
        return json.loads(next(Path(folder).rglob("result.json")).read_text())


if __name__ == "__main__":
    record = {"ppo": logged(["train"]), "random": logged(["search", "--searcher", "random"])}
    (RESULTS / "search.json").write_text(json.dumps(record, indent=1) + "\n")
