"""The walk-through in docs/add-a-template.md, followed to the letter in a copy of the sources."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILE_BLOCK = re.compile(r"^`([\w/.]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """A copy of the sources with the walk-through's files added."""
    copy = tmp_path_factory.mktemp("walk_through")
    skip = shutil.ignore_patterns("__pycache__", "records", "policies")
    for folder in ("atoffer_rl", "kernels", "envs", "agents", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", copy)
    files = FILE_BLOCK.findall((ROOT / "docs/add-a-template.md").read_text())
    for name, text in files:
        (copy / name).write_text(text)
    return copy, [name for name, _ in files]


def python(folder, *words):
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_registry_finds_it(followed):
    folder, names = followed
    assert len(names) == 5
    call = "import sys; from atoffer_rl.cli.app import run; sys.exit(run(['schemes', '--why', '8', '8']))"
    assert "chain, residual offer" in python(folder, "-c", call).stdout


def test_its_own_test_passes(followed):
    folder, names = followed
    result = python(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", names[-1])
    assert result.returncode == 0, result.stdout


def test_its_style_passes(followed):
    folder, names = followed
    for command in (["check"], ["format", "--check"]):
        sources = [name for name in names if name.endswith(".py")]
        result = python(folder, "-m", "ruff", *command, *sources)
        assert result.returncode == 0, result.stdout + result.stderr
