"""Rows packed together and taken apart again."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from atoffer_rl.kernels.packing import pack_rows, sequence_tensors, unpack_rows, without_padding
from atoffer_rl.workload import Workload


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_rows_are_packed_and_unpacked_again(lengths):
    packed = Workload(
        batch=len(lengths), seq_len=9, heads=1, head_dim=8, ffn_dim=8, lengths="uniform:shortest=0", packed=True
    )
    drawn = torch.tensor(lengths, dtype=torch.int32)
    rows = torch.arange(1.0, packed.rows * 8 + 1).view(-1, 9, 8)
    together = pack_rows(packed, rows, drawn)
    assert torch.equal(
        together.view(-1, 8)[: sum(lengths)], torch.cat([one[:n] for one, n in zip(rows, lengths, strict=True)])
    )
    assert not together.view(-1, 8)[sum(lengths) :].any()
    apart = unpack_rows(packed, together + 0.0, drawn)
    assert torch.equal(apart, without_padding(replace(packed, packed=False), rows, drawn))
    assert torch.equal(pack_rows(packed, apart, drawn), together)
    starts = sequence_tensors(packed, drawn)["offsets"]
    assert starts.dtype == torch.int32
    for start, n, one in zip(starts.tolist(), lengths, rows, strict=True):
        assert torch.equal(together.view(-1, 8)[start : start + n], one[:n])
