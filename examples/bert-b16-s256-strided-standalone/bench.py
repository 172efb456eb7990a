"""Times an export: `python bench.py` prints the latency of each scheme in it, taken in one run."""

import argparse
import json
import statistics
import sys
from pathlib import Path

from runtime import (  # type: ignore[import-not-found]
    BEST,
    SAFE,
    Encoder,
    ExportError,
    missing_cupy,
    read_manifest,
)


def main() -> int:
    """Time both schemes of the export through CUDA graphs."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--replays", type=int, default=100, help="timed replays of each scheme")
    parser.add_argument("--json", action="store_true", help="print all samples as JSON")
    options = parser.parse_args()
    if options.replays < 1:
        parser.error("--replays must be at least 1")
    folder = Path(__file__).parent
    try:
        samples = _samples(folder, options.replays)
    except ExportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except MemoryError:
        print("error: not enough GPU memory: free some, or export for a smaller batch", file=sys.stderr)
        return 1
    except RuntimeError as error:  # CuPy's, of a fault on the GPU
        print(f"error: the GPU failed: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps({"samples_us": samples}))
    else:
        for name, taken in samples.items():
            print(f"{name}: {statistics.median(taken):.1f} us a forward (median of {len(taken)})")
    return 0


def _samples(folder: Path, replays: int) -> dict[str, list[float]]:
    """Latencies in us of both schemes' forwards."""
    read_manifest(folder)  # before what lies beside it is run
    try:
        from reference import Reference  # type: ignore[import-not-found]
        from verification import time_forward  # type: ignore[import-not-found]
    except ImportError as error:
        raise missing_cupy(error) from error
    samples = {}
    for name in (BEST, SAFE):
        encoder = Encoder.load(folder, name)
        samples[name] = time_forward(encoder, Reference(encoder.manifest, folder, seed=0), replays)
    return samples


if __name__ == "__main__":
    sys.exit(main())
