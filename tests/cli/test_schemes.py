"""`atoffer schemes`."""

import json
from dataclasses import replace

import numpy as np
import pytest

from atoffer_rl.cli import scheme_source
from atoffer_rl.device import DEFAULT_DEVICE
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.records import RecordedTable, TableHeader, save_table
from atoffer_rl.run import Run
from atoffer_rl.scheme import Scheme
from atoffer_rl.trial import Machine
from atoffer_rl.workload import Workload
from tests.synthetic import synthetic_table


def test_the_space_is_a_real_decision(atoffer):
    space = json.loads(atoffer("schemes", "--count", "--json").out)
    assert space["legal_runs"] >= 40
    assert space["partitions"] >= 1_900
    assert space["schemes"] > 10**12
    assert "runs" not in space
    assert f"{space['partitions']:,} partitions" in atoffer("schemes", "--count").out


def test_the_list_names_runs_and_templates(atoffer):
    space = json.loads(atoffer("schemes", "--json").out)
    runs = {tuple(row["run"]): row for row in space["runs"]}
    assert len(runs) == space["legal_runs"]
    assert runs[2, 6]["operators"] == ["qk_gemm", "mask", "softmax", "pv_gemm", "merge_heads"]
    assert {"rowwise", "gather"} <= set(runs[2, 6]["templates"])
    assert sum(sum(row["templates"].values()) for row in runs.values()) == space["choices"]
    assert all(number <= 64 for row in runs.values() for number in row["templates"].values())
    assert "qk_gemm mask softmax pv_gemm merge_heads" in atoffer("schemes").out


def test_why(atoffer):
    assert "[10,12] is not legal" in atoffer("schemes", "--why", 10, 12).out
    assert "[10,11] is legal" in atoffer("schemes", "--why", 10, 11).out
    answer = json.loads(atoffer("schemes", "--why", 2, 6, "--json").out)
    assert answer["legal"]
    assert answer["run"] == [2, 6]
    blocks_in_float32 = atoffer("schemes", "--why", 2, 6, "--dtype", "float32")
    assert "block" not in blocks_in_float32.out


def test_a_standalone_space_has_generated_kernels_alone(atoffer):
    space = json.loads(atoffer("schemes", "--standalone", "--json").out)
    assert not [row for row in space["runs"] if "cublaslt" in row["templates"]]
    assert space["choices"] < json.loads(atoffer("schemes", "--count", "--json").out)["choices"]
    assert "cublaslt" in atoffer("schemes", "--why", 0, 0).out
    assert "cublaslt" not in atoffer("schemes", "--why", 0, 0, "--standalone").out


@pytest.mark.parametrize("ends", [(3, 2), (-1, 4), (3, 15)])
def test_why_takes_a_run(atoffer, ends):
    outcome = atoffer("schemes", "--why", *ends)
    assert outcome.status
    assert outcome.err


def test_code(atoffer):
    answer = json.loads(atoffer("schemes", "--code", 41115, "--json").out)
    assert answer["handwritten"]
    assert [2, 6] in answer["runs"]
    assert Scheme.from_json(answer["scheme"]).choices[2].template == "gather"
    text = atoffer("schemes", "--code", 54613).out
    assert "the same program as code 10922" in text
    assert atoffer("schemes", "--code", 65536).status == 1


def test_scores_that_cannot_be_indexed_are_not_stored(atoffer):
    long = ("--batch", 16, "--seq-len", 4096)
    assert "scores would have 3,221,225,472 elements" in atoffer("schemes", *long, "--why", 2, 2).out
    assert "[2,6] is legal" in atoffer("schemes", *long, "--why", 2, 6).out
    unfused = json.loads(atoffer("schemes", *long, "--code", 10922, "--json").out)["scheme"]
    assert Run(2, 5) in Scheme.from_json(unfused).runs


@pytest.mark.parametrize("words", [("--why", 0, 0, "--code", 3), ("--why", 0, 0, "--count"), ("--count", "--code", 3)])
def test_two_questions_at_once_are_refused(atoffer, words):
    outcome = atoffer("schemes", *words)
    assert outcome.status == 1
    assert "give one of them" in outcome.err


def test_a_code_is_not_for_a_standalone_space(atoffer):
    assert "leave one out" in atoffer("schemes", "--code", 3, "--standalone").err


def test_the_device_is_that_of_the_workloads_table(atoffer, monkeypatch):
    device = replace(DEFAULT_DEVICE, name="another", arch="sm_89", shared_bytes_per_block=101_376)
    table = RecordedTable(TableHeader("t", Machine(), device, (Workload(),), {}), ())
    monkeypatch.setattr(scheme_source, "table_for", lambda _: table)
    assert json.loads(atoffer("schemes", "--count", "--json").out)["device"] == "another"
    assert "block" not in atoffer("schemes", "--why", 2, 5).out
    lowered = json.loads(atoffer("schemes", "--code", 41115, "--json").out)["scheme"]
    LegalSpace(Workload(), device).check(Scheme.from_json(lowered))


def test_a_workload_without_a_table_has_the_default_device(atoffer):
    never_recorded = ("--batch", 3, "--seq-len", 48)
    counted = json.loads(atoffer("schemes", *never_recorded, "--count", "--json").out)
    assert counted["device"] == DEFAULT_DEVICE.name


def test_a_table_whose_mask_is_gone_is_in_nobodys_way(atoffer, tmp_path, monkeypatch):
    np.save(tmp_path / "mask.npy", np.ones((32, 32), bool))
    workload = Workload(batch=2, seq_len=32, heads=2, head_dim=32, ffn_dim=128, mask=f"file:{tmp_path / 'mask.npy'}")
    save_table(synthetic_table(workload), tmp_path / "a.jsonl.gz")
    (tmp_path / "mask.npy").unlink()
    monkeypatch.setattr("atoffer_rl.records.table_paths", lambda *_: (tmp_path / "a.jsonl.gz",))
    assert "partitions" in atoffer("schemes", "--count").out
    assert "recorded: none" in atoffer("explain").err
