"""A workload whose score matrix is just too large to index, and everything else small."""

from atoffer_rl.workload import MAX_INDEX, Workload

LARGE_SCORES = Workload(batch=8192, seq_len=128, heads=16, head_dim=8, ffn_dim=64)
assert LARGE_SCORES.score_count == MAX_INDEX + 1
