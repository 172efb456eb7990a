"""What a contest makes of its samples; a real one where there is a GPU."""

import pytest
import torch

from atoffer_rl.bench.contest import Contender, Contest, Standing, best_options, reason_of, row_of
from atoffer_rl.bench.graph_timing import GRAPH_LAUNCHES, launches_for
from atoffer_rl.errors import LaunchError
from atoffer_rl.kernels.verify import Verdict


def contender(name, option=""):
    return Contender(name, lambda: lambda: torch.zeros(1), option)


def test_the_fastest_option_counts():
    contenders = [contender("ours"), *(contender("Flex", option) for option in ("a", "b", "c")), contender("other")]
    samples = {"ours": [1.0], "Flex a": [5.0, 5.0, 9.0], "Flex b": [4.0, 4.5, 9.0]}
    standing = best_options(contenders, samples, {"Flex c": "too much shared memory", "other": "refused"})
    assert standing.samples_us == {"ours": [1.0], "Flex": [4.0, 4.5, 9.0]}
    assert standing.options == {"Flex": "b"}
    assert standing.errors == {"other": "refused"}


def test_a_peer_whose_every_option_fails_has_the_first_reason():
    contenders = [contender("Flex", "a"), contender("Flex", "b")]
    standing = best_options(contenders, {}, {"Flex a": "first", "Flex b": "second"})
    assert standing.errors == {"Flex": "first"}
    assert not standing.options


def test_speedup_is_over_the_fastest_peer():
    standing = Standing({"ours": [2.0], "a": [8.0, 9.0, 7.0], "b": [5.0]}, {"c": "out of memory"}, {"b": "x"})
    row = row_of(standing, Verdict(True, "", 0.5, 1.0), 0.25)
    assert row["speedup"] == 2.5
    assert row["peers"] == {"a": 8.0, "b": 5.0}
    assert row["peer_options"] == {"b": "x"}
    assert (row["max_error"], row["error_budget"], row["bytes_floor_us"]) == (0.5, 1.0, 0.25)


def test_without_peers_there_is_no_speedup():
    assert row_of(Standing({"ours": [2.0]}, {"c": "no"}), Verdict(True, "", 0.0, 1.0), 2.0)["speedup"] is None


def test_reasons_are_one_line():
    assert reason_of(RuntimeError("one\ntwo"), []) == "one"
    assert reason_of(torch.OutOfMemoryError("CUDA out of memory. Tried ..."), []) == "out of memory"
    assert reason_of(RuntimeError("backend='inductor' raised:\nValueError: no\nmore"), []) == "ValueError: no"
    assert reason_of(RuntimeError("backend='inductor' raised:\n\n  no\nmore"), []) == "no"
    assert reason_of(RuntimeError("backend='inductor' raised:"), []) == "backend='inductor' raised:"
    broken = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    broken.__context__ = torch.OutOfMemoryError("CUDA out of memory. Tried ...")
    assert reason_of(broken, []) == "out of memory"
    noted = [
        "Flash attention kernel not used because: (Triggered internally at x)",
        "Flash attention has been runtime disabled. (Triggered internally at y)",
        "Expected a bias of half precision. (Triggered internally at z)",
    ]
    assert reason_of(RuntimeError("No available kernel. Aborting."), noted) == "Expected a bias of half precision."
    assert reason_of(RuntimeError("No available kernel. Aborting."), []) == "No available kernel. Aborting."


@pytest.mark.parametrize(
    ("launch_us", "launches"), [(3.0, 20), (50.0, 20), (60.0, 4), (250.0, 4), (300.0, 1), (9e4, 1)]
)
def test_a_replay_is_not_too_long(launch_us, launches):
    assert launches_for(GRAPH_LAUNCHES, launch_us) == launches


@pytest.mark.gpu
def test_contenders_are_timed_and_failures_named():
    x = torch.randn(1024, 1024, device="cuda")

    def failing():
        raise ValueError("not today")

    contest = Contest(
        [
            Contender("ours", lambda: lambda: x + 1),
            Contender("same", lambda: lambda: x.add(1), "in place of"),
            Contender("wrong", lambda: lambda: x + 2),
            Contender("failing", failing),
            Contender("uncapturable", lambda: lambda: x + (x[0, 0].item() * 0 + 1)),
            Contender("huge", lambda: lambda: torch.empty(2**40, device="cuda")),
        ],
        GRAPH_LAUNCHES,
    )
    standing = contest.time(24)
    assert set(standing.samples_us) == {"ours", "same"}
    assert all(len(samples) == 24 and min(samples) > 0 for samples in standing.samples_us.values())
    assert standing.options == {"same": "in place of"}
    assert standing.errors["failing"] == "not today"
    assert standing.errors["huge"] == "out of memory"
    assert "differs" in standing.errors["wrong"]
    assert "uncapturable" in standing.errors


@pytest.mark.gpu
def test_ours_must_run():
    def failing():
        raise ValueError("not today")

    with pytest.raises(LaunchError, match="not today"):
        Contest([Contender("ours", failing)], GRAPH_LAUNCHES)
