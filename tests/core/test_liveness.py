import random
from itertools import pairwise

import pytest

from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.liveness import largest_live_set, lifetimes, plan_buffers
from atoffer_rl.operators import OPERATOR_COUNT, run_activations, run_results
from atoffer_rl.run import Run
from atoffer_rl.tensors import ALIGNMENT_BYTES, layer_tensors
from atoffer_rl.workload import Workload
from tests.large_scores import LARGE_SCORES
from tests.partitions import partitions

WORKLOADS = (
    Workload(),
    Workload(batch=1, seq_len=64),
    Workload(batch=1, seq_len=512, dtype="float32", activation="relu"),
    Workload(batch=1, seq_len=37, heads=3, head_dim=32, ffn_dim=70),
    Workload(batch=2, seq_len=20, heads=2, head_dim=128, ffn_dim=8192),
)
SAMPLES = 150


def cut(code):
    """The partition whose cuts are the bits of `code`, legal or not."""
    ends = [i for i in range(OPERATOR_COUNT - 1) if code >> i & 1] + [OPERATOR_COUNT - 1]
    return tuple(Run(first, last) for first, last in zip([0, *(end + 1 for end in ends)], ends, strict=False))


def needed(runs):
    """For each segment, the tensors that it or a later segment may not lose: a plain restatement."""
    for segment, run in enumerate(runs):
        present = {"x"}.union(*(run_results(earlier) for earlier in runs[:segment]))
        later = set().union(*(run_activations(other) for other in runs[segment:]))
        yield (present & later) | set(run_results(run))


def check(workload, runs):
    plan = plan_buffers(workload, runs)
    sizes = {name: tensor.size_bytes for name, tensor in layer_tensors(workload).items()}
    assert plan.offsets_bytes["x"] == 0
    assert plan.offsets_bytes["y"] + plan.sizes_bytes["y"] == plan.peak_bytes
    for offsets in (plan.offsets_bytes, plan.mirrored().offsets_bytes):
        assert not any(offset % ALIGNMENT_BYTES for offset in offsets.values())
        for live in needed(runs):
            spans = sorted((offsets[name], offsets[name] + sizes[name]) for name in live)
            assert spans[0][0] >= 0
            assert spans[-1][1] <= plan.peak_bytes
            assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert plan.mirrored().offsets_bytes["x"] == plan.offsets_bytes["y"]
    return plan


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.key)
def test_legal_partitions_need_no_more_than_their_largest_live_set(workload):
    every = list(partitions(LegalSpace(workload).runs))
    for runs in random.Random(0).sample(every, min(SAMPLES, len(every))):
        plan = check(workload, runs)
        assert plan.peak_bytes == largest_live_set(lifetimes(workload, runs)), runs


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.key)
def test_any_partition_has_a_plan_near_its_largest_live_set(workload):
    for code in random.Random(1).sample(range(2 ** (OPERATOR_COUNT - 1)), SAMPLES):
        plan = check(workload, cut(code))
        assert plan.peak_bytes <= 1.5 * largest_live_set(lifetimes(workload, cut(code)))


def test_the_largest_live_set_by_hand():
    workload = Workload(batch=2, seq_len=128)
    row, unfused = workload.rows * workload.width * 2, tuple(Run(i, i) for i in range(OPERATOR_COUNT))
    scores = workload.score_count * 4
    # Masking: the layer's input, q, k and v, scores and masked scores.
    assert plan_buffers(workload, unfused).peak_bytes == row + 3 * row + 2 * scores
    # Activation: the normalised attention output and two hidden rows.
    fused = (Run(0, 1), Run(2, 6), Run(7, 8), Run(9, 9), Run(10, 10), Run(11, 11), Run(12, 13), Run(14, 14))
    assert plan_buffers(workload, fused).peak_bytes == row + 2 * workload.rows * workload.ffn_dim * 2


@pytest.mark.parametrize("workload", [Workload(batch=1, seq_len=4096), LARGE_SCORES], ids=["one", "large"])
def test_fused_attention_stores_nothing_of_the_size_of_the_scores(workload):
    runs = (Run(0, 1), Run(2, 6), Run(7, 8), Run(9, 9), Run(10, 11), Run(12, 13), Run(14, 14))
    plan = plan_buffers(workload, runs)
    assert not {"scores", "masked_scores", "probs"} & set(plan.offsets_bytes)
    assert plan.peak_bytes < workload.score_count
