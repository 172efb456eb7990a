"""`atoffer explain`."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from atoffer_rl.atoffer_code import AtofferProgram
from atoffer_rl.cli.explain import _ordinal
from atoffer_rl.kernels.choice_program import template_program
from atoffer_rl.kernels.cubin_cache import program_hash
from atoffer_rl.kernels.lowering import lower
from atoffer_rl.run import Run
from atoffer_rl.scheme import Scheme
from atoffer_rl.store import Store
from atoffer_rl.table_summary import best_recorded, latencies
from atoffer_rl.trial import Machine
from atoffer_rl.workload import Workload
from tests.synthetic import synthetic_table, with_an_illegal_choice, with_failure

NEVER_RECORDED = ["--batch", "3", "--seq-len", "48"]


def test_a_code(atoffer):
    answer = json.loads(atoffer("explain", "--code", 41115, *NEVER_RECORDED, "--json").out)
    assert [tuple(row["run"]) for row in answer["segments"]][2] == (2, 6)
    assert answer["layer_latency_us"] is None
    assert answer["peak_activation_bytes"] >= 5 * 3 * 48 * 768 * 2
    for row in answer["segments"]:
        assert row["bytes"] > 0
        assert row["floor_us"] > 0
    assert answer["layer_floor_us"] == pytest.approx(sum(row["floor_us"] for row in answer["segments"]))
    text = atoffer("explain", "--code", 41115, *NEVER_RECORDED).out
    assert "AToffer code 41115, for B 3, S 48" in text
    assert "not every segment was measured" in text


@pytest.fixture(autouse=True)
def no_live_trials(monkeypatch, tmp_path):
    """Nobody's usual store."""
    monkeypatch.setenv("ATOFFER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def recorded(monkeypatch):
    """A recorded table of a small workload, and the options that name it."""
    workload = Workload(batch=2, seq_len=64, mask="fixed")
    table = synthetic_table(workload)
    monkeypatch.setattr("atoffer_rl.records.recorded_tables", lambda *_: (table,))
    return table, workload, ["--batch", "2", "--seq-len", "64", "--mask", "fixed"]


def test_the_best_recorded_scheme(atoffer, recorded):
    table, workload, options = recorded
    best, best_us = best_recorded(table, workload)
    answer = json.loads(atoffer("explain", *options, "--json").out)
    assert answer["scheme"] == best.to_json()
    assert answer["layer_latency_us"] == pytest.approx(best_us)
    text = atoffer("explain", *options).out
    assert "the best scheme of the recorded table" in text
    assert f"recorded table {table.header.table}" in text
    assert f"one layer: {best_us:.2f} us" in text


def test_what_is_not_legal_any_more_is_not_the_best(atoffer, recorded, monkeypatch):
    table, workload, options = recorded
    outdated = with_an_illegal_choice(table)
    assert best_recorded(outdated, workload) != best_recorded(table, workload)
    monkeypatch.setattr("atoffer_rl.records.recorded_tables", lambda *_: (outdated,))
    answer = json.loads(atoffer("explain", *options, "--json").out)
    assert answer["scheme"] == best_recorded(table, workload)[0].to_json()


def test_a_choice_that_failed_says_why(atoffer, recorded, monkeypatch, tmp_path):
    table, workload, options = recorded
    scheme, _ = best_recorded(table, workload)
    (tmp_path / "scheme.json").write_text(json.dumps(scheme.to_json()))
    first = scheme.choices[0].run
    failing = with_failure(table, scheme.choices[0])
    monkeypatch.setattr("atoffer_rl.records.recorded_tables", lambda *_: (failing,))
    words = ("explain", *options, "--scheme", tmp_path / "scheme.json")
    rows = json.loads(atoffer(*words, "--json").out)["segments"]
    why = f"[{first.first},{first.last}] failed, wrong_result: 3 times its budget"
    assert (rows[0]["status"], rows[0]["latency_us"], rows[0]["why"]) == ("wrong_result", None, why)
    assert {row["status"] for row in rows[1:]} <= {"ok"}
    text = atoffer(*words).out
    assert f": {why}\n" in text
    assert f"us; no latency, for [{first.first},{first.last}] failed\n" in text
    assert "not every segment" not in text


def test_why_a_choice_won(atoffer, recorded):
    table, workload, options = recorded
    measured = latencies(table.segments(workload))
    for row in json.loads(atoffer("explain", *options, "--json").out)["segments"]:
        of_run = {choice: us for choice, us in measured.items() if choice.run == tuple(row["run"])}
        rank = sum(us < row["latency_us"] for us in of_run.values()) + 1
        assert row["why"].startswith(f"{'fastest' if rank == 1 else _ordinal(rank)} of {len(of_run)} measured")
        rivals = [us for choice, us in of_run.items() if choice.template != row["template"]]
        told = "the best of another template takes"
        assert not rivals or f"{told} {min(rivals) / row['latency_us']:.2f} of its time" in row["why"]
    assert "; the best other " in atoffer("explain", *options).out


def live_trials(workload, run, machine, taken="2026-01-01T00:00:00+00:00"):
    """Trials of the choices of one run, as a live measurement of the kernels that are here leaves them."""
    return [
        replace(
            trial,
            table="",
            machine=machine,
            taken=taken,
            source_hash=program_hash(template_program(workload, trial.choice)),
        )
        for trial in synthetic_table(workload).trials
        if trial.choice is not None and trial.choice.run == run
    ]


@pytest.mark.parametrize("usual", [True, False])
def test_trials_of_a_store_answer_for_what_no_table_has(atoffer, tmp_path, usual):
    workload, run = Workload(batch=3, seq_len=48), Run(2, 6)
    trials = live_trials(workload, run, Machine(device="NVIDIA H100 80GB HBM3"))
    earlier = live_trials(workload, run, Machine(device="NVIDIA H200"), "2025-01-01T00:00:00+00:00")
    outdated = replace(trials[0], latency_us=0.01, samples_us=(0.01,), source_hash="another")
    path = tmp_path / ("cache/trials.db" if usual else "live.db")
    with Store(path) as store:
        store.add_all([*earlier, *trials, outdated])
    words = ("explain", *NEVER_RECORDED, *(() if usual else ("--store", path)))
    answer = json.loads(atoffer(*words, "--json").out)
    best = min((trial for trial in trials if trial.ok), key=lambda trial: trial.latency_us)
    rows = {tuple(row["run"]): row for row in answer["segments"]}
    assert answer["device"] == "NVIDIA H100 80GB HBM3"
    assert rows[2, 6]["latency_us"] == best.latency_us
    assert rows[2, 6]["why"].startswith("fastest of ")
    assert all(row["why"] is None for place, row in rows.items() if place != (2, 6))
    assert f"the best scheme of the trials of {path}, unfused where nothing was measured" in atoffer(*words).out


def test_a_store_that_knows_nothing_of_a_workload(atoffer, tmp_path):
    with Store(tmp_path / "live.db") as store:
        store.add_all(live_trials(Workload(batch=2, seq_len=48), Run(2, 6), Machine(device="NVIDIA H200")))
    before = (tmp_path / "live.db").read_bytes()
    outcome = atoffer("explain", *NEVER_RECORDED, "--store", tmp_path / "live.db")
    assert outcome.status == 1
    assert "was not measured: give --scheme or --code" in outcome.err
    assert (tmp_path / "live.db").read_bytes() == before


def test_a_store_that_is_none_stays_as_it_is(atoffer, tmp_path):
    (tmp_path / "empty.txt").touch()
    for name, reason in (("empty.txt", "holds nothing"), ("nothing.db", "there is no store")):
        outcome = atoffer("explain", *NEVER_RECORDED, "--store", tmp_path / name)
        assert outcome.status == 1
        assert reason in outcome.err
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_size] == []


def test_ordinals():
    assert [_ordinal(n) for n in (2, 3, 4, 12, 21, 113)] == ["2nd", "3rd", "4th", "12th", "21st", "113th"]


def test_a_latency_below_the_floor_has_a_footnote(atoffer, recorded, monkeypatch):
    assert "below the floor" not in atoffer("explain", "--code", 41115, *NEVER_RECORDED).out
    monkeypatch.setattr("atoffer_rl.cli.explain.floor_us", lambda *_: 1e6)
    assert "below the floor: [0," in atoffer("explain", *recorded[2]).out


def test_a_code_of_a_recorded_workload_has_latencies(atoffer, recorded):
    answer = json.loads(atoffer("explain", *recorded[2], "--code", 10922, "--json").out)
    assert answer["layer_latency_us"] == pytest.approx(sum(row["latency_us"] for row in answer["segments"]))


def test_a_file(atoffer, tmp_path):
    path = tmp_path / "scheme.json"
    scheme = lower(AtofferProgram.from_code(0), Workload(batch=3, seq_len=48))
    manifest = {"schemes": {"best": {"scheme": scheme.to_json()}}}
    for value in (scheme.to_json(), {"scheme": scheme.to_json(), "latency_us": 3}, manifest):
        path.write_text(json.dumps(value, sort_keys=True), encoding="utf-8-sig")
        answer = json.loads(atoffer("explain", "--scheme", path, *NEVER_RECORDED, "--json").out)
        assert Scheme.from_json(answer["scheme"]) == scheme


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 500 + "]" * 500, "nested too deeply"),
        ('{"segments": [{"run": [0, ' + "9" * 5000 + "]}]}", "5000 digits"),
        ("[]", "a scheme is a JSON object"),
        ('{"segments": []}', "this has none"),
        ('{"segments": [3]}', "not a choice: 3"),
        ('{"workload": {}}', "not a workload"),
        (
            '{"segments": [{"run": [0, 14], "template": "magic", "parameters": {}}]}',
            "unknown template 'magic': use one of block",
        ),
    ],
)
def test_a_bad_file(atoffer, tmp_path, text, says):
    path = tmp_path / "scheme.json"
    path.write_text(text)
    outcome = atoffer("explain", "--scheme", path)
    assert outcome.status == 1
    assert says in outcome.err
    assert str(path) in outcome.err


def test_what_is_no_regular_file_is_not_read(atoffer, tmp_path):
    os.mkfifo(tmp_path / "result.json")
    for path in (tmp_path / "result.json", "/dev/zero", tmp_path):
        outcome = atoffer("explain", "--scheme", path)
        assert f"cannot read scheme: {path} is a folder, pipe or device: choose a regular file" in outcome.err
    (tmp_path / "large.json").touch()
    os.truncate(tmp_path / "large.json", 2**40)
    assert "holds over" in atoffer("explain", "--scheme", tmp_path / "large.json").err


def test_a_scheme_of_another_workload(atoffer, tmp_path):
    path = tmp_path / "scheme.json"
    path.write_text(json.dumps(lower(AtofferProgram.from_code(41115), Workload()).to_json()))
    outcome = atoffer("explain", "--scheme", path, "--dtype", "float32")
    assert outcome.status == 1
    assert "is not legal for this workload" in outcome.err
    assert str(path) in outcome.err


def test_a_result_of_another_workload(atoffer, tmp_path):
    path = tmp_path / "result.json"
    workload = Workload(mask="fixed", layers=3)
    scheme = lower(AtofferProgram.from_code(0), workload)
    path.write_text(json.dumps({"workload": workload.to_json(), "scheme": scheme.to_json()}))
    assert atoffer("explain", "--scheme", path, "--mask", "fixed").status == 0
    outcome = atoffer("explain", "--scheme", path, "--mask", "causal")
    assert outcome.status == 1
    assert "it is for mask fixed:block=16, but the options say mask causal" in outcome.err


def test_what_differs_is_named_once(atoffer, tmp_path):
    path = tmp_path / "result.json"
    workload = Workload(epsilon=1e-5, layers=3)
    path.write_text(json.dumps({"workload": workload.to_json(), "scheme": {}}))
    assert "it is for epsilon 1e-05, but the options say epsilon 1e-12\n" in atoffer("explain", "--scheme", path).err
    outcome = atoffer("explain", "--scheme", path, "--epsilon", "1e-5", "--batch", 2, "--dtype", "float32")
    assert "it is for batch 16, dtype float16, but the options say batch 2, dtype float32\n" in outcome.err


def test_a_mask_file_may_lie_elsewhere(atoffer, tmp_path):
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, np.tri(64, dtype=bool))
    np.save(tmp_path / "other.npy", np.ones((64, 64), bool))
    workload = Workload(batch=2, seq_len=64, mask=f"file:{tmp_path / 'a.npy'}")
    scheme = lower(AtofferProgram.from_code(0), workload)
    (tmp_path / "r.json").write_text(json.dumps({"workload": workload.to_json(), "scheme": scheme.to_json()}))
    words = ("explain", "--batch", 2, "--seq-len", 64, "--scheme", tmp_path / "r.json", "--mask")
    assert atoffer(*words, f"file:{tmp_path / 'b.npy'}").status == 0
    assert "but the options say mask file:" in atoffer(*words, f"file:{tmp_path / 'other.npy'}").err


def test_nothing_to_explain(atoffer, tmp_path):
    outcome = atoffer("explain", *NEVER_RECORDED)
    assert "give --scheme or --code" in outcome.err
    assert "(`atoffer records list` shows them)" in outcome.err
    assert len(outcome.err) < 200
    assert "cannot read scheme" in atoffer("explain", "--scheme", tmp_path / "gone.json").err
    assert "two schemes" in atoffer("explain", "--scheme", tmp_path / "gone.json", "--code", 3).err
