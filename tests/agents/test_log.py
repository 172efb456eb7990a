import json
import os
import signal

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from atoffer_rl.agents import random_search
from atoffer_rl.agents.log import TRIALS_FILE, RunLog
from atoffer_rl.errors import LogError


def events_of(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def test_tensorboard_tells_the_search(session_of, tmp_path):
    session = session_of(units=20, folder=tmp_path)
    result = random_search.search(session)
    session.log.hyperparameters({"seed": 0}, {"metric/regret": result.regret})
    session.log.close()
    events = events_of(tmp_path)
    scalars = events.Tags()["scalars"]
    assert {"search/best_latency_us", "search/regret", "search/units", "search/seconds", "search/cache_hits"} <= set(
        scalars
    )
    assert {"search/status/ok", "search/status/wrong_result", "search/status/crashed"} <= set(scalars)
    assert [point.step for point in events.Scalars("search/best_latency_us")] == list(range(21))
    assert events.Scalars("search/best_latency_us")[-1].value == pytest.approx(result.latency_us, rel=1e-6)
    assert events.Tags()["images"] == ["scheme/best"]
    assert "scheme/best/text_summary" in events.Tags()["tensors"]


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_an_unwritable_folder_is_one_line(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="use another --log-folder") as failure:
        RunLog(tmp_path / place)
    assert "\n" not in str(failure.value)


def test_a_folder_that_tensorboard_cannot_name_is_one_line(tmp_path):
    with pytest.raises(LogError, match=r"\(no UTF-8\): use another --log-folder"):
        RunLog(tmp_path / os.fsdecode(b"\xff"))


def test_a_line_that_was_left_half_written_is_dropped(tmp_path):
    with RunLog(tmp_path) as log:
        log.trial({"number": 1})
    with (tmp_path / TRIALS_FILE).open("a") as lines:
        lines.write('{"numb')
    with RunLog(tmp_path) as log:
        log.trial({"number": 2})
    assert (tmp_path / TRIALS_FILE).read_text() == '{"number": 1}\n{"number": 2}\n'


def test_a_last_line_without_its_end_is_kept(tmp_path):
    (tmp_path / TRIALS_FILE).write_text('{"choice": "a"}\n{"choice": "b"}')
    with RunLog(tmp_path) as log:
        log.keep_trials({"a", "b"})
        log.trial({"choice": "c"})
    assert choices_in(tmp_path) == list("abc")


@pytest.mark.parametrize(
    "damage", [b"\xff\xfe\n", '{"choice": "b"}'.encode("utf-16") + b"\n", b'{"choice": "\xed\xa0\x80"}\n']
)
def test_what_is_no_utf8_costs_no_other_line(tmp_path, damage):
    (tmp_path / TRIALS_FILE).write_bytes(damage + b'{"choice": "a"}\n' + damage + b'{"choice": "c"}\n' + damage[:-1])
    with RunLog(tmp_path) as log:
        log.keep_trials({"a", "b", "c", "\ud800"})
        log.trial({"choice": "d"})
    assert choices_in(tmp_path) == list("acd")


def test_what_was_paid_for_and_is_missing_is_written(tmp_path):
    with RunLog(tmp_path) as log:
        for name in "bx":
            log.trial({"choice": name, "units": 2})
    with RunLog(tmp_path) as log:
        log.keep_trials({"a", "b", "c", "x"}, [{"choice": name, "units": k} for k, name in enumerate("abc", 1)])
    assert choices_in(tmp_path) == list("abcx")


def test_trials_that_are_no_file_are_refused(tmp_path):
    for name, make in (
        ("pipe", os.mkfifo),
        ("folder", os.mkdir),
        ("device", lambda path: path.symlink_to("/dev/zero")),
    ):
        (tmp_path / name).mkdir()
        make(tmp_path / name / TRIALS_FILE)
        with pytest.raises(LogError, match="is a folder, pipe or device: remove it, or use another --log-folder"):
            RunLog(tmp_path / name)


def choices_in(folder):
    return [json.loads(line)["choice"] for line in (folder / TRIALS_FILE).read_text().splitlines()]


def test_ctrl_c_waits_until_a_write_is_done(tmp_path, monkeypatch):
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    steps = []
    try:
        with RunLog(tmp_path) as log:

            def interrupted(*_):
                signal.raise_signal(signal.SIGINT)
                steps.append("written")

            monkeypatch.setattr(log._writer, "add_scalar", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.scalar("a", 1.0, 0)
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, earlier)
    assert steps == ["written"]


def test_one_run_writes_a_folder_at_a_time(tmp_path):
    with RunLog(tmp_path), pytest.raises(LogError, match="another run is writing"):
        RunLog(tmp_path)
    with RunLog(tmp_path):
        pass


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RunLog() as log:
        log.scalar("a", 1.0, 0)
        log.text("b", "c", 0)
        log.trial({})
        log.result({})
        log.hyperparameters({}, {})
    assert not list(tmp_path.iterdir())


def test_trials_after_a_checkpoint_are_dropped(tmp_path):
    with RunLog(tmp_path) as log:
        for name in "abcadb":
            log.trial({"choice": name, "units": 1})
    with (tmp_path / TRIALS_FILE).open("a") as lines:
        lines.write('{"choice": [1]}\n[]\nno JSON\n')
    with RunLog(tmp_path) as log:
        log.keep_trials({"a", "b", "d"})
        log.trial({"choice": "c", "units": 2})
    kept = [json.loads(line) for line in (tmp_path / TRIALS_FILE).read_text().splitlines()]
    assert [line["choice"] for line in kept] == list("abdc")
    RunLog().keep_trials(set())
