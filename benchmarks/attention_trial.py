"""Times choices of attention beside each other, in one run: what a change of a template or of its space is judged by.

    python benchmarks/attention_trial.py trial.json --json trial_result.json

The trial is a list of {"workload": {"batch": 16, "seq_len": 1024, "mask": "strided"}, "choices": [...]}. A choice is
{"template": "block", "parameters": {...}}; a template's name alone stands for all its legal choices, and no "choices"
for all there are. A choice need not be one that is offered, only possible. Each is verified on the last sequences, then
all of a workload take turns.
"""

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from atoffer_rl.bench.cells import ATTENTION, device_here
from atoffer_rl.bench.record import machine_here
from atoffer_rl.bench.script import run_script
from atoffer_rl.device import DeviceSpec
from atoffer_rl.errors import AtofferError, CompileError
from atoffer_rl.kernels.compiler import compile_kernel
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.program import KernelProgram, PlanArray
from atoffer_rl.kernels.registry import template_named
from atoffer_rl.scheme import Choice
from atoffer_rl.workload import Workload

LAUNCHES = (20,)
VERIFIED_SEQUENCES = 2


@dataclass(frozen=True)
class Compiled:
    """A choice's program with its plan, or why there is none."""

    choice: Choice
    program: KernelProgram | None = None
    plan: dict[str, PlanArray] | None = None
    cubin: bytes = b""
    reason: str = ""


def choices_of(entry: dict[str, Any], workload: Workload, device: DeviceSpec) -> Iterator[Choice]:
    """What an entry of a trial asks for."""
    legal = LegalSpace(workload, device).choices(ATTENTION)
    for asked in entry.get("choices", sorted({choice.template for choice in legal})):
        if isinstance(asked, str):
            yield from (choice for choice in legal if choice.template == asked)
        else:
            yield Choice(ATTENTION, asked["template"], tuple(asked["parameters"].items()))


def compiled(workload: Workload, choice: Choice, device: DeviceSpec) -> Compiled:
    """`choice` made ready to be loaded; runs in a process of its own."""
    template = template_named(choice.template)
    values = dict(choice.parameters)
    try:
        reason = template.why_not(workload, ATTENTION, device) or template.impossible(
            workload, ATTENTION, values, device
        )
    except KeyError as missing:
        reason = f"lacks parameter {missing}"
    if reason is not None:
        return Compiled(choice, reason=reason)
    program = template.program(workload, choice)
    if not isinstance(program, KernelProgram):
        return Compiled(choice, reason="is a library call")
    try:
        cubin = compile_kernel(program, device.arch)
    except CompileError as error:
        return Compiled(choice, reason=str(error))
    return Compiled(choice, replace(program, plan=dict), program.plan(), cubin)


def timed(workload: Workload, ready: list[Compiled], replays: int) -> list[dict[str, Any]]:
    """A row for each of `ready`, fastest first."""
    import torch

    from atoffer_rl.bench.graph_timing import capture, choose_replay, time_in_turns
    from atoffer_rl.bench.mha import judge
    from atoffer_rl.kernels.encoder import addresses
    from atoffer_rl.kernels.inputs import Inputs, draw_inputs
    from atoffer_rl.kernels.launch import load_program
    from atoffer_rl.tensors import layer_tensors

    inputs = draw_inputs(workload, ATTENTION, Inputs.RANDOM, 0, "cuda")
    merged = torch.empty(layer_tensors(workload)["merged"].shape, dtype=inputs["qkv"].dtype, device="cuda")
    pointers = addresses({**inputs, "merged": merged})
    last = slice(max(0, workload.batch - VERIFIED_SEQUENCES), workload.batch)
    rows, contenders, loaded = [], {}, []
    for each in ready:
        row: dict[str, Any] = {"choice": str(each.choice), "us": None, "reason": each.reason}
        rows.append(row)
        if each.program is None:
            continue
        program = replace(each.program, plan=partial(getattr, each, "plan"))
        segment = load_program(program, each.cubin)
        loaded.append(segment)  # graphs do not keep what they launch

        def launch(segment: Any = segment) -> None:
            segment.launch(pointers, torch.cuda.current_stream().cuda_stream)

        merged.fill_(float("nan"))
        launch()
        (verdict,) = judge(workload, inputs, [merged], [last])
        row |= {"max_error": verdict.max_error, "reason": verdict.reason}
        contenders[row["choice"]] = choose_replay(capture(launch, LAUNCHES, None))
    for name, samples in time_in_turns(contenders, replays).items():
        next(row for row in rows if row["choice"] == name)["us"] = median(samples)
    return sorted(rows, key=lambda row: (row["us"] is None, row["us"]))


def main() -> int:
    """Run the trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trial", type=Path)
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--show", type=int, default=8, help="rows of each workload to print")
    options = parser.parse_args()
    try:
        entries = json.loads(options.trial.read_text())
    except (OSError, ValueError) as error:
        raise AtofferError(f"{options.trial} is no trial: see --help for what one looks like") from error
    device = device_here()
    results: list[dict[str, Any]] = []
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        jobs = []
        for entry in entries:
            workload = Workload(**entry["workload"])
            made = [pool.submit(compiled, workload, choice, device) for choice in choices_of(entry, workload, device)]
            jobs.append((workload, made))
        for workload, made in jobs:
            rows = timed(workload, [job.result() for job in made], options.replays)
            results.append({"workload": workload.to_json(), "rows": rows})
            print(f"B {workload.batch}, S {workload.seq_len}, {workload.mask}, {workload.dtype}")
            for row in rows[: options.show]:
                print(f"  {row['us']} us  {row['choice']}  {row['reason']}", flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps({**machine_here(), "results": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    run_script(main)
