"""Masks to cut into parts and items: drawn at random, and named ones."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

NAMED = [
    "dense",
    "causal",
    "strided",
    "fixed:block=5",
    "sliding:window=0",
    "sliding:window=6",
    "longformer:window=4,global=2",
    "bigbird:window=2,global=1,random=1,block=4",
]


class Squares:
    """A mask that keeps what its squares say: (1 or batch, seq_len, seq_len)."""

    def __init__(self, squares):
        self.squares = squares
        self.seq_len = squares.shape[-1]

    def __repr__(self):
        return f"Squares({self.squares.astype(int).tolist()})"

    def keep(self, seq_len):
        assert seq_len == self.seq_len
        return self.squares


@st.composite
def squares(draw, batches=(1, 1), longest=50):
    """Sparse or dense noise beside a band, some empty rows and columns, for each mask of a batch."""
    seq_len, batch = draw(st.integers(1, longest)), draw(st.integers(*batches))
    source = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    density = draw(st.sampled_from([0.0, 0.02, 0.2, 0.7, 1.0]))
    offset = np.subtract.outer(np.arange(seq_len), np.arange(seq_len))
    keep = source.random((batch, seq_len, seq_len)) < density
    keep |= (offset < draw(st.integers(0, 6))) & (offset > -draw(st.integers(0, 6)))
    keep &= ~draw(arrays(bool, seq_len, fill=st.just(False)))[:, None]
    keep &= ~draw(arrays(bool, seq_len, fill=st.just(False)))
    return Squares(keep)
