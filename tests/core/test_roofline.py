from dataclasses import replace

import pytest

from atoffer_rl.device import H100
from atoffer_rl.dtype import DType
from atoffer_rl.roofline import floor_us, kept_pairs, run_bytes
from atoffer_rl.run import Run
from atoffer_rl.workload import Workload

SMALL = Workload(batch=2, seq_len=6, heads=3, head_dim=4, ffn_dim=20, mask="causal")
ROWS, WIDTH = 12, 12


def test_a_product_moves_its_operands_and_its_result():
    assert run_bytes(SMALL, Run(10, 10)) == 2 * (ROWS * WIDTH + WIDTH * 20 + ROWS * 20)


def test_fused_intermediates_are_not_moved():
    assert run_bytes(SMALL, Run(10, 11)) == run_bytes(SMALL, Run(10, 10)) + 2 * 20
    parts = sum(run_bytes(SMALL, Run(op, op)) for op in range(2, 7))
    scores_moved = 2 * 3 * 36 * (4 + 4 + 4 + 4 + 2 + 2)
    assert parts - run_bytes(SMALL, Run(2, 6)) >= scores_moved


def test_pairs_that_the_mask_drops_do_not_count():
    assert kept_pairs(SMALL) == 2 * 3 * 21


def test_packed_attention_stores_the_tokens_of_its_sequences_alone():
    padded = replace(SMALL, lengths="list:1/2")
    packed = replace(padded, packed=True)
    merged = 2 * ROWS * WIDTH
    assert run_bytes(padded, Run(2, 6)) - run_bytes(packed, Run(2, 6)) == merged - merged * 3 // 12
    assert kept_pairs(padded) == kept_pairs(packed)
    assert run_bytes(padded, Run(7, 8)) == run_bytes(packed, Run(7, 8))


def test_the_floor_is_the_longer_of_memory_and_arithmetic():
    assert floor_us(3e6, 0, DType.FLOAT16, H100) == pytest.approx(1.0)
    assert floor_us(3e6, 7.9e9, DType.FLOAT16, H100) == pytest.approx(10.0)
    assert floor_us(3e6, 6e8, DType.FLOAT32, H100) == pytest.approx(10.0)
