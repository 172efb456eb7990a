"""What importing the package brings in, seen from fresh processes; and what a wheel would hold."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import atoffer_rl

ROOT = Path(__file__).parent.parent
GPU_MODULES = {"cupy", "nvmath", "cuda"}
LEARNING_MODULES = {"torch", "stable_baselines3", "sb3_contrib", "gymnasium", "tensorboard"}
DRAWING_MODULES = {"matplotlib"}
HEAVY_MODULES = GPU_MODULES | LEARNING_MODULES | DRAWING_MODULES


def loaded_after(statement):
    """Top-level modules that a fresh process has loaded after `statement`."""
    program = f"{statement}\nimport sys\nprint(' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT, env=os.environ
    )
    return set(result.stdout.splitlines()[-1].split())


def test_the_package_alone_is_light():
    assert not loaded_after("import atoffer_rl") & (HEAVY_MODULES | {"jinja2", "numpy", "yaml", "rich", "typer"})


def test_core_and_spaces_need_no_gpu_and_no_learning():
    statement = (
        "from atoffer_rl.kernels.legal_space import LegalSpace\n"
        "from atoffer_rl.kernels.registry import template_named\n"
        "from atoffer_rl.workload import Workload\n"
        "workload = Workload(batch=1, seq_len=32)\n"
        "[template_named(choice.template).program(workload, choice) for choice in LegalSpace(workload).unfused.choices]"
    )
    assert not loaded_after(statement) & HEAVY_MODULES


def test_replay_needs_no_gpu_and_no_learning():
    statement = "import atoffer_rl.records, atoffer_rl.store, atoffer_rl.kernels.measurers.replay"
    assert not loaded_after(statement) & HEAVY_MODULES


@pytest.mark.parametrize("words", [["--help"], ["schemes", "--count"], ["masks"], ["train", "--help"]])
def test_the_command_line_starts_light(words):
    assert not loaded_after(f"from atoffer_rl.cli.app import run\nassert run({words!r}) == 0") & HEAVY_MODULES


@pytest.mark.parametrize("folder", ["kernels", "envs", "agents"])
def test_links_lead_to_the_folders(folder):
    link = Path(atoffer_rl.__file__).parent / folder
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.resolve() == ROOT / folder


def test_nothing_of_ours_is_installed_by_a_bare_name():
    outside = "import importlib.util as u\nassert not [n for n in ('kernels', 'envs', 'agents') if u.find_spec(n)]"
    subprocess.run([sys.executable, "-I", "-c", outside], check=True, cwd=ROOT.parent)
