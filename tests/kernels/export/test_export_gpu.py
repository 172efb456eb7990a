"""An export checked where neither this package nor torch can be imported."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from atoffer_rl.kernels.export.payload.runtime import manifest_checksum
from atoffer_rl.kernels.export.writer import Export, write_export
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.registry import template_choices
from atoffer_rl.run import Run
from atoffer_rl.scheme import Scheme
from atoffer_rl.workload import Workload

ISOLATED = """
import runpy, sys
sys.modules["torch"] = sys.modules["atoffer_rl"] = None
sys.path.insert(0, sys.argv[1])
sys.argv = ["runtime.py", "verify", "--json"]
runpy.run_path(sys.path[0] + "/runtime.py", run_name="__main__")
"""


def verified(folder: Path) -> dict[str, object]:
    """What the export's own runtime says of itself in a bare process."""
    done = subprocess.run([sys.executable, "-c", ISOLATED, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def small(dtype: str) -> Workload:
    """Odd rows, two layers, so that both images of the buffer plan are used."""
    return Workload(batch=3, seq_len=40, heads=2, head_dim=32, ffn_dim=96, layers=3, dtype=dtype, mask="fixed")


def arch() -> tuple[str, ...]:
    """The compiler target of this GPU."""
    from atoffer_rl.kernels.machine import current_device

    return (current_device().arch,)


def unfused_export(workload: Workload, parent: Path) -> Path:
    """An export whose best scheme is the unfused one."""
    from atoffer_rl.kernels.machine import current_device

    device = current_device()
    return write_export(Export(workload, LegalSpace(workload, device).unfused, device, arch(), {}), parent / "export")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_generated_scheme_verifies_in_a_bare_process(dtype: str, tmp_path: Path) -> None:
    workload = small(dtype)
    folder = unfused_export(workload, tmp_path)
    record = verified(folder)
    assert record["usable"]
    assert all(found["right"] for found in record["schemes"].values())  # type: ignore[attr-defined]


@pytest.mark.gpu
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("lengths", ["uniform:shortest=0", "list:0/40/7", "list:0/0/0"])
def test_scheme_with_lengths_verifies_in_a_bare_process(lengths: str, packed: bool, tmp_path: Path) -> None:
    record = verified(unfused_export(replace(small("float16"), lengths=lengths, packed=packed), tmp_path))
    assert all(found["right"] for found in record["schemes"].values())  # type: ignore[attr-defined]


@pytest.mark.gpu
def test_lengths_are_taken_from_torch_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from atoffer_rl.kernels.inputs import draw_weights
    from atoffer_rl.kernels.packing import without_padding
    from atoffer_rl.kernels.reference import encoder_reference

    workload = replace(small("float16"), lengths="uniform:shortest=0")
    folder = unfused_export(workload, tmp_path)
    monkeypatch.syspath_prepend(str(folder))
    runtime = __import__("runtime")
    encoder = runtime.Encoder.load(folder)
    x = torch.randn(3, 40, 64, device="cuda", dtype=torch.float16)
    weights = [draw_weights(workload, seed, "cuda") for seed in range(3)]
    out, lengths = torch.empty_like(x), torch.tensor([40, 0, 13], device="cuda", dtype=torch.int32)
    encoder.forward(x, weights, out=out, stream=torch.cuda.current_stream().cuda_stream, lengths=lengths)
    torch.cuda.synchronize()
    found, expected = (
        without_padding(workload, rows, lengths)
        for rows in (out, encoder_reference(workload, x, weights, lengths=lengths))
    )
    assert (found.double() - expected).abs().max() < 0.05
    for wrong, says in ((None, "needs lengths="), (lengths.long(), "must be int32"), (lengths[:2], "of shape")):
        with pytest.raises(runtime.ExportError, match=says):
            encoder.forward(x, weights, out=out, lengths=wrong)


@pytest.mark.gpu
def test_offsets_are_taken_from_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from atoffer_rl.kernels.inputs import draw_weights
    from atoffer_rl.kernels.packing import sequence_tensors, without_padding
    from atoffer_rl.kernels.reference import encoder_reference

    workload = replace(small("float16"), lengths="uniform:shortest=0", packed=True)
    folder = unfused_export(workload, tmp_path)
    monkeypatch.syspath_prepend(str(folder))
    runtime = __import__("runtime")
    encoder = runtime.Encoder.load(folder)
    x = torch.randn(3, 40, 64, device="cuda", dtype=torch.float16)
    weights = [draw_weights(workload, seed, "cuda") for seed in range(3)]
    out, lengths = torch.empty_like(x), torch.tensor([40, 0, 13], device="cuda", dtype=torch.int32)
    stream = torch.cuda.current_stream().cuda_stream
    encoder.forward(x, weights, out=out, stream=stream, **sequence_tensors(workload, lengths))
    torch.cuda.synchronize()
    found, expected = (
        without_padding(workload, rows, lengths)
        for rows in (out, encoder_reference(workload, x, weights, lengths=lengths))
    )
    assert (found.double() - expected).abs().max() < 0.05
    with pytest.raises(runtime.ExportError, match="needs offsets="):
        encoder.forward(x, weights, out=out, lengths=lengths)


@pytest.mark.gpu
def test_library_scheme_verifies_in_a_bare_process(tmp_path: Path) -> None:
    from atoffer_rl.kernels.machine import current_device

    workload = small("float16")
    device = current_device()
    wanted = [(0, 1, "cublaslt"), (2, 6, "gather"), (7, 8, "cublaslt"), (9, 9, "chain"), (10, 11, "gemm")]
    wanted += [(12, 13, "cublaslt"), (14, 14, "chain")]
    scheme = Scheme(tuple(template_choices(name, workload, Run(a, b), device)[0] for a, b, name in wanted))
    folder = write_export(Export(workload, scheme, device, arch(), {}), tmp_path / "export")
    assert verified(folder)["usable"]


@pytest.mark.gpu
def test_a_wrong_best_scheme_falls_back_to_the_safe_one(tmp_path: Path) -> None:
    workload = small("float16")
    folder = unfused_export(workload, tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    last = manifest["schemes"]["best"]["segments"][-1]
    last["arguments"] = [{"gamma_2": "beta_2", "beta_2": "gamma_2"}.get(name, name) for name in last["arguments"]]
    sealed = manifest | {"checksum": manifest_checksum(manifest)}
    (folder / "manifest.json").write_text(json.dumps(sealed))
    record = verified(folder)
    assert record["scheme"] == "safe"
    assert record["usable"]


@pytest.mark.gpu
def test_torch_tensors_go_in_and_the_result_comes_out_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from atoffer_rl.kernels.inputs import draw_weights
    from atoffer_rl.kernels.reference import encoder_reference

    workload = small("float16")
    folder = unfused_export(workload, tmp_path)
    monkeypatch.syspath_prepend(str(folder))
    runtime = __import__("runtime")
    encoder = runtime.Encoder.load(folder)
    x = torch.randn(3, 40, 64, device="cuda", dtype=torch.float16)
    weights = [draw_weights(workload, seed, "cuda") for seed in range(3)]
    out = torch.empty_like(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        encoder.forward(x, weights, out=out, stream=stream.cuda_stream)
    stream.synchronize()
    expected = encoder_reference(workload, x, weights)
    assert (out.double() - expected).abs().max() < 0.05
    first = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        encoder.forward(x, weights, out=out, stream=stream.cuda_stream)
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, first)
    with pytest.raises(runtime.ExportError, match="shape"):
        encoder.forward(x[:2], weights, out=out)
