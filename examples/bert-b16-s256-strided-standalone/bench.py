"""Times an export: `python bench.py` prints the latency of each scheme in it, taken in one run."""

import argparse
import json
import statistics
import sys
from pathlib import Path

from runtime import BEST, SAFE, Encoder, ExportError  # type: ignore[import-not-found]


def main() -> int:
    """Time both schemes of the export through CUDA graphs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--replays", type=int, default=100, help="timed replays of each scheme")
    parser.add_argument("--json", action="store_true", help="print all samples as JSON")
    options = parser.parse_args()
    folder = Path(__file__).parent
    try:
        from reference import Reference  # type: ignore[import-not-found]
        from verification import time_forward  # type: ignore[import-not-found]

        samples = {}
        for name in (BEST, SAFE):
            encoder = Encoder.load(folder, name)
            samples[name] = time_forward(encoder, Reference(encoder.manifest, folder, seed=0), options.replays)
    except (ExportError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({"samples_us": samples}))
    else:
        for name, taken in samples.items():
            print(f"{name}: {statistics.median(taken):.1f} us a forward (median of {len(taken)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
