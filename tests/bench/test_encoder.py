"""What is checked and said of a whole forward; a whole row where there is a GPU."""

import pytest
import torch

from atoffer_rl.bench import encoder
from atoffer_rl.errors import LaunchError
from atoffer_rl.kernels.inputs import draw_weights
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.reference import Precision, encoder_reference
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.workload import Workload

WORKLOAD = Workload(2, 19, 2, 8, 32, 2, mask="strided", activation="relu", epsilon=1e-5)


@pytest.fixture
def forward():
    """The forward's input, its weights, and what eager computes of them."""
    weights = [draw_weights(WORKLOAD, seed, "cpu") for seed in range(WORKLOAD.layers)]
    x = torch.randn(layer_tensors(WORKLOAD)["x"].shape, generator=torch.Generator().manual_seed(0)).half()
    return x, weights, encoder_reference(WORKLOAD, x, weights, Precision.EAGER)


def test_what_eager_computes_is_right(forward):
    x, weights, eager = forward
    verdict = encoder.verified(WORKLOAD, lambda: eager, x, weights)
    assert 0 < verdict.max_error < verdict.error_budget


@pytest.mark.parametrize(("value", "reason"), [(100.0, "is off by"), (float("nan"), "holds NaN")])
def test_one_wrong_element_ends_it(forward, value, reason):
    x, weights, eager = forward
    eager[-1, -1] = value
    with pytest.raises(LaunchError, match=f"^ours is wrong: {reason}"):
        encoder.verified(WORKLOAD, lambda: eager, x, weights)


def test_too_little_memory_is_told_in_a_line(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate ...")

    monkeypatch.setattr(encoder, "draw_weights", full)
    with pytest.raises(LaunchError, match="not enough GPU memory: reduce --layers, --batch, --seq-len or --ffn-dim"):
        encoder.bench_encoder(WORKLOAD, LegalSpace(WORKLOAD).unfused, 20)


def test_a_row_tells_its_workload():
    assert encoder.encoder_identity(WORKLOAD) == {
        name: value for name, value in WORKLOAD.to_json().items() if name not in ("lengths", "packed")
    }


@pytest.mark.gpu
def test_an_encoder_has_a_whole_row():
    workload = Workload(2, 128, 2, 64, 256, 2, mask="causal")
    row = encoder.bench_encoder(workload, LegalSpace(workload).unfused, 20)
    assert row.items() >= encoder.encoder_identity(workload).items()
    assert row["max_error"] <= row["error_budget"]
    assert row["ours_us"] > 0
    assert row["peers"]


@pytest.mark.gpu
def test_a_wrong_forward_is_not_timed(monkeypatch):
    class Silent:
        def forward(self, *_):
            """Write nothing."""

    workload = Workload(2, 128, 2, 64, 256, 2, mask="causal")
    monkeypatch.setattr(encoder, "compile_encoder", lambda *_: Silent())
    monkeypatch.setattr(encoder, "Contest", None)
    with pytest.raises(LaunchError, match="ours is wrong: holds NaN"):
        encoder.bench_encoder(workload, LegalSpace(workload).unfused, 20)
