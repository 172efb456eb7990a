"""`atoffer doctor`: what this machine has, and what it lacks for live measurement."""

from importlib.metadata import PackageNotFoundError, version
from platform import python_version

from atoffer_rl.cli.options import JsonOption
from atoffer_rl.cli.output import print_json, print_line
from atoffer_rl.errors import AtofferError
from atoffer_rl.records import describe, recorded_workloads

PACKAGES = ("numpy", "torch", "stable-baselines3", "sb3-contrib", "cuda-core", "cupy-cuda13x", "cupy-cuda12x")
FAILS = "fails:"


def command(*, json: JsonOption = False) -> None:
    """Say what works on this machine, and what is missing.

    Example: atoffer doctor
    """
    findings = _findings()
    if json:
        print_json(findings)
    else:
        for name, value in findings.items():
            for line in value or ["none"] if isinstance(value, list) else [value]:
                print_line(f"{name:<12} {line}")
    if failed := [name for name, value in findings.items() if str(value).startswith(FAILS)]:
        raise AtofferError(f"{', '.join(failed)} failed: what is printed says why")


def _findings() -> dict[str, str | list[str]]:
    from atoffer_rl.kernels.cubin_cache import cache_folder
    from atoffer_rl.kernels.machine import what_is_missing
    from atoffer_rl.kernels.measurers.open import default_store

    missing = what_is_missing()
    return {
        "python": python_version(),
        "packages": ", ".join(f"{name} {number}" for name in PACKAGES if (number := _version(name))),
        "compiling": _compiling(),
        "live": f"not here: it needs {missing}" if missing else f"works on {_gpu()}",
        "replay": _recorded(),
        "cache": str(cache_folder()),
        "store": str(default_store()),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _compiling() -> str:
    """Whether a kernel compiles here."""
    from atoffer_rl.kernels.anchors import anchor_programs
    from atoffer_rl.kernels.compiler import compile_kernel, compiler_version

    try:
        compile_kernel(anchor_programs()["math"], "sm_90a")
    except (AtofferError, ImportError) as error:
        return f"{FAILS} {error}"
    return f"works, {compiler_version()}"


def _recorded() -> str | list[str]:
    """The workloads whose latencies ship with the package."""
    try:
        return [describe(workload) for workload in recorded_workloads()]
    except AtofferError as error:
        return f"{FAILS} {error}"


def _gpu() -> str:
    from atoffer_rl.kernels.machine import current_device, current_machine

    device, machine = current_device(), current_machine()
    return f"{device.name} ({device.arch}, driver {machine.driver}, CUDA {machine.cuda}, {machine.libraries})"
