"""A wheel holds everything the package reads at run time, and nothing under a bare name."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("atoffer_rl", "kernels", "envs", "agents")
NOT_SHIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.partial")


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory):
    """Files of a wheel built from a copy of the sources."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, symlinks=True, ignore=NOT_SHIPPED)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", target, source], check=True, capture_output=True)
    with zipfile.ZipFile(next(target.glob("*.whl"))) as wheel:
        return set(wheel.namelist())


def test_every_source_and_data_file_is_there(wheel_names):
    expected = set()
    for folder in FOLDERS:
        base = "atoffer_rl" if folder == "atoffer_rl" else f"atoffer_rl/{folder}"
        for path in (ROOT / folder).rglob("*"):
            relative = path.relative_to(ROOT / folder)
            linked = folder == "atoffer_rl" and relative.parts[0] in FOLDERS
            if path.is_file() and not linked and "__pycache__" not in relative.parts and path.name[0] != ".":
                expected.add(f"{base}/{relative.as_posix()}")
    assert expected - wheel_names == set()


def test_nothing_lies_outside_the_package(wheel_names):
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"atoffer_rl"}
    assert any(name.endswith("licenses/LICENSE") for name in wheel_names)
