"""Launches a kernel of every template and run once, on buffers of exact size, for compute-sanitizer to watch.

Example: compute-sanitizer --tool memcheck --error-exitcode 1 python benchmarks/sanitize.py
"""

import argparse
import random
from collections.abc import Container, Iterator

from atoffer_rl.bench.cells import device_here
from atoffer_rl.bench.script import run_script
from atoffer_rl.kernels.launch import load_choice
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.registry import all_templates
from atoffer_rl.operators import run_activations, run_results, run_weights
from atoffer_rl.scheme import Choice
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.workload import Workload

TEMPLATES = sorted(template.name for template in all_templates() if template.generated)
LENGTHS = "uniform:shortest=1"
SHAPES = (
    Workload(batch=2, seq_len=72, heads=2, head_dim=64, ffn_dim=256, mask="strided"),
    Workload(batch=2, seq_len=37, heads=3, head_dim=32, ffn_dim=100, mask="bigbird:window=8,global=2,block=4"),
    Workload(batch=1, seq_len=300, heads=2, head_dim=64, ffn_dim=256, mask="strided"),
    Workload(batch=1, seq_len=520, heads=2, head_dim=64, ffn_dim=256, mask="longformer:window=32,global=20"),
    Workload(batch=2, seq_len=72, heads=2, head_dim=64, ffn_dim=256, mask="strided", lengths=LENGTHS),
    Workload(batch=2, seq_len=72, heads=2, head_dim=64, ffn_dim=256, mask="strided", lengths=LENGTHS, packed=True),
)


def samples(workload: Workload, templates: Container[str], count: int, source: random.Random) -> Iterator[Choice]:
    """Up to `count` choices of each of `templates` for each legal run, its default among them."""
    space = LegalSpace(workload, standalone=True)
    for run in sorted(space.runs):
        by_template: dict[str, list[Choice]] = {}
        for choice in space.choices(run):
            if choice.template in templates:
                by_template.setdefault(choice.template, []).append(choice)
        for choices in by_template.values():
            yield choices[0]
            yield from source.sample(choices[1:], min(count - 1, len(choices) - 1))


def launch(workload: Workload, choice: Choice) -> None:
    """Run `choice` once on random values, each tensor in an allocation of its own."""
    import cupy

    stored = layer_tensors(workload)
    names = (*run_activations(choice.run), *run_weights(choice.run), *run_results(choice.run))
    memory = {name: cupy.random.random(-(-stored[name].size_bytes // 8)).view(cupy.uint8) for name in names}
    lengths = workload.length_spec.typical(workload.batch)
    sequences = {"lengths": lengths, "offsets": lengths.cumsum() - lengths}
    memory |= {name: cupy.asarray(rows.astype("int32")) for name, rows in sequences.items()}
    load_choice(workload, choice).launch({name: array.data.ptr for name, array in memory.items()}, 0)
    cupy.cuda.runtime.deviceSynchronize()


def main() -> int:
    """Launch them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--choices", type=int, default=3, help="choices of each template for each run")
    parser.add_argument("--templates", nargs="+", default=TEMPLATES, choices=TEMPLATES)
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device_here()  # or an error that says what is missing
    import cupy

    cupy.cuda.set_allocator(None)  # one allocation a tensor: an access beside it is an access to nothing
    source, launched = random.Random(options.seed), 0
    for shape in SHAPES:
        workload = Workload.from_json(shape.to_json() | {"dtype": options.dtype})
        for choice in samples(workload, options.templates, options.choices, source):
            print(choice, flush=True)  # what follows of the sanitizer's is about this one
            launch(workload, choice)
            launched += 1
    print(f"{launched} kernels launched in {options.dtype}")
    return 0


if __name__ == "__main__":
    run_script(main)
