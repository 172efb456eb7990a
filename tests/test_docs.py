"""The walk-through in docs/add-a-template.md, followed to the letter in a copy of the sources."""

import ast
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


def imported_names(text):
    """The (module, name) pairs that Python source imports from this package, inside functions too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "atoffer_rl":
            yield from ((node.module, imported.name) for imported in node.names)


def test_what_it_imports_is_there(followed):
    """What runs on a GPU alone, too: no other test here executes that."""
    folder, names = followed
    sources = [(folder / name).read_text() for name in names if name.endswith(".py")]
    imports = sorted({pair for text in sources for pair in imported_names(text)})
    assert "verify_choice" in {name for _, name in imports}
    statements = "\n".join(f"from {module} import {name}" for module, name in imports)
    result = python(folder, "-c", statements)
    assert result.returncode == 0, result.stderr


def test_its_style_passes(followed):
    folder, names = followed
    for command in (["check"], ["format", "--check"]):
        sources = [name for name in names if name.endswith(".py")]
        result = python(folder, "-m", "ruff", *command, *sources)
        assert result.returncode == 0, result.stdout + result.stderr
