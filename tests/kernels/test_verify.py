"""Verdicts on one tensor."""

import pytest
import torch

from atoffer_rl.kernels import verify
from atoffer_rl.kernels.verify import compare


def test_budget_is_twice_the_eager_error_and_one_epsilon():
    reference = torch.tensor([1.0, -4.0, 2.0], dtype=torch.float64)
    eager = torch.tensor([1.0, -4.0, 2.5])
    verdict = compare(torch.tensor([1.0, -4.0, 3.0]), reference, eager, 0.125)
    assert verdict.error_budget == 2 * (0.5 + 0.125 * 4)
    assert verdict.passed
    assert not compare(torch.tensor([1.0, -4.0, 4.1]), reference, eager, 0.125).passed


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_fail_where_the_reference_is(wrong):
    reference = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert not compare(torch.tensor([1.0, wrong]), reference, reference.float(), 0.5).passed


def test_an_eager_result_that_overflows_earns_no_budget():
    reference = torch.tensor([1.0, 70000.0], dtype=torch.float64)
    assert not compare(torch.tensor([1.0, 0.0]), reference, reference.half(), 2.0**-10).passed


@pytest.mark.parametrize("out", [torch.nan, torch.inf, 0.0])
def test_minus_infinity_must_stand_where_the_reference_has_it(out):
    reference = torch.tensor([1.0, -torch.inf], dtype=torch.float64)
    assert compare(reference.float(), reference, reference.float(), 0.1).passed
    assert not compare(torch.tensor([1.0, out]), reference, reference.float(), 0.1).passed


def test_pieces_are_compared_as_the_whole(monkeypatch):
    source = torch.Generator().manual_seed(0)
    reference = torch.randn(2, 7, 11, generator=source, dtype=torch.float64)
    reference[1, 3, 4] = -torch.inf
    out, eager = reference.float(), reference.half()
    out[0, 6, 10] += 0.02
    whole = verify.differences(out, reference, eager)
    monkeypatch.setattr(verify, "COMPARED_AT_ONCE", 10)
    assert torch.equal(verify.differences(out, reference, eager), whole)
    out[1, 0, 0] = torch.nan
    assert not compare(out, reference, eager, 0.1).passed
