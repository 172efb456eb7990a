"""The committed export is what the templates render today."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from atoffer_rl.kernels.export.payload import runtime
from atoffer_rl.kernels.export.writer import PAYLOAD
from atoffer_rl.kernels.program import KernelProgram
from atoffer_rl.kernels.registry import template_named
from atoffer_rl.kernels.render import TEMPLATE_FOLDER
from atoffer_rl.scheme import Scheme
from atoffer_rl.workload import Workload

FOLDER = Path(__file__).parent.parent / "examples" / "bert-b16-s256-strided-standalone"
AGAIN = "export it again, as examples/README.md says"


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    """The example's manifest, its checksums proved."""
    return runtime.read_manifest(FOLDER)


@pytest.mark.parametrize("scheme", ["best", "safe"])
def test_sources_are_what_is_rendered(manifest: dict[str, Any], scheme: str) -> None:
    workload = Workload.from_json(manifest["workload"])
    exported = manifest["schemes"][scheme]
    choices = Scheme.from_json(exported["scheme"]).choices
    for choice, segment in zip(choices, exported["segments"], strict=True):
        program = template_named(choice.template).program(workload, choice)
        assert isinstance(program, KernelProgram)
        assert (FOLDER / "source" / f"{segment['name']}.cu").read_text() == program.source, AGAIN
        for header in program.headers:
            assert (FOLDER / "source" / header).read_text() == (TEMPLATE_FOLDER / header).read_text(), AGAIN


def test_runtime_is_the_one_that_ships() -> None:
    shipped = {module.rpartition(".")[2]: find_spec(module) for module in PAYLOAD}
    assert {path.stem for path in FOLDER.glob("*.py")} == set(shipped)
    for name, spec in shipped.items():
        assert spec is not None
        assert spec.origin is not None
        assert (FOLDER / f"{name}.py").read_text() == Path(spec.origin).read_text(), AGAIN


def test_it_needs_cupy_alone(manifest: dict[str, Any]) -> None:
    assert manifest["requires"] == ["cupy"]
    assert {segment["kind"] for plan in manifest["schemes"].values() for segment in plan["segments"]} == {"kernel"}
