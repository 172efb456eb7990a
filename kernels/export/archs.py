"""Which compiler targets a scheme can be exported for."""

import re
from collections.abc import Iterable
from dataclasses import replace

from atoffer_rl.device import DeviceSpec
from atoffer_rl.errors import ExportError
from atoffer_rl.kernels.compiler import ARCH_HINT
from atoffer_rl.kernels.registry import template_named
from atoffer_rl.kernels.templates.limits import SHARED_BYTES_RESERVED
from atoffer_rl.quote import quote
from atoffer_rl.scheme import Choice
from atoffer_rl.workload import Workload

ARCH_NAME = re.compile(r"sm_[0-9]{2,3}[af]?")
SHARED_BYTES = {75: 65_536, 80: 166_912, 87: 166_912, 90: 232_448, 100: 232_448, 103: 232_448, 110: 232_448}
"""Most shared memory of a block, by compute capability; `LEAST_SHARED_BYTES` for all others.

Reference:
    CUDA C++ Programming Guide, Technical Specifications per Compute Capability.
"""
LEAST_SHARED_BYTES = 101_376


def check_arch(arch: str) -> None:
    """Accept the name of a chip's target.

    Raises:
        ExportError: If it is none.
    """
    if not ARCH_NAME.fullmatch(arch):
        raise ExportError(f"{quote(arch)} is no arch: {ARCH_HINT}")
    if arch.endswith("f"):
        raise ExportError(f"an export finds no cubin of a family such as {arch}: name a chip's own arch")


def check_runs_on(workload: Workload, choices: Iterable[Choice], arch: str, tuned_for: DeviceSpec) -> None:
    """Accept choices whose instructions and resources chips of `arch` have.

    Args:
        workload: What they are for.
        choices: Of a scheme that is legal on `tuned_for`.
        arch: A name that `check_arch` accepts; whether there is such a target, the compiler knows.
        tuned_for: The device that the scheme was made for.

    Raises:
        ExportError: Naming the first that does not run there.
    """
    device = _device(arch, tuned_for)
    for choice in choices:
        template = template_named(choice.template)
        why = template.why_not(workload, choice.run, device)
        if why := why or template.impossible(workload, choice.run, dict(choice.parameters), device):
            raise ExportError(f"{choice} does not run on {arch} ({why}): choose another --arch, or another scheme")


def _device(arch: str, tuned_for: DeviceSpec) -> DeviceSpec:
    """A chip of `arch`, as far as templates ask."""
    device = replace(tuned_for, arch=arch)
    if device.compute_capability == tuned_for.compute_capability:
        return device
    shared_bytes = SHARED_BYTES.get(device.compute_capability, LEAST_SHARED_BYTES)
    return replace(
        device,
        shared_bytes_per_block=shared_bytes,
        shared_bytes_per_multiprocessor=shared_bytes + SHARED_BYTES_RESERVED,
    )
