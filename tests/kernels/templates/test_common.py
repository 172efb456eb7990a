import math
import re

import numpy as np

from atoffer_rl.kernels.render import TEMPLATE_FOLDER

HEADER = (TEMPLATE_FOLDER / "common.cuh").read_text()
CLAIMED_ERROR, CLAIMED_NEGATIVE_ERROR = 2.5e-7, 7e-8
CLAIMED_TANH_ERROR = 6e-7


def gelu_of_header(x):
    """What `Gelu::apply` computes, rounded to float32 after each fused multiply-add."""
    body = HEADER[HEADER.index("struct Gelu {") : HEADER.index("struct GeluTanh")]
    first, *others = [np.float64(float.fromhex(text)) for text in re.findall(r"(-?0x[\d.a-f]+p[+-]\d+)f", body)]
    a = np.minimum(np.abs(x), np.float32(16))
    log = np.full_like(x, first)
    for coefficient in others:
        log = (log.astype(np.float64) * a + coefficient).astype(np.float32)
    return (np.maximum(x, 0).astype(np.float64) - a * np.exp2(log.astype(np.float64))).astype(np.float32)


def test_gelu_is_exact_to_float32():
    x = np.linspace(-20, 20, 40001).astype(np.float32)
    exact = np.array([0.5 * value * math.erfc(-value / math.sqrt(2)) for value in x.tolist()])
    error = np.abs(gelu_of_header(x) - exact)
    assert error.max() <= CLAIMED_ERROR
    assert error[x < 0].max() <= CLAIMED_NEGATIVE_ERROR


def gelu_tanh_of_header(x):
    """What `GeluTanh::apply` computes, rounded to float32 after each operation."""
    body = HEADER[HEADER.index("struct GeluTanh {") : HEADER.index("struct AccurateGelu {")]
    scale = np.float32(math.prod(map(float, re.search(r"kScale = (.*?);", body)[1].replace("f", "").split(" * "))))
    cubic = np.float32(re.search(r"fmaf\(([\d.]+)f \* x \* x, x, x\)", body)[1])
    inner = ((cubic * x * x).astype(np.float64) * x + x).astype(np.float32)
    return x / (np.float32(1) + np.exp2(scale * inner))


def test_gelu_tanh_is_as_near_as_the_header_says():
    x = np.linspace(-10, 10, 40001).astype(np.float32)
    wide = x.astype(np.float64)
    exact = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    assert np.abs(gelu_tanh_of_header(x) - exact).max() <= CLAIMED_TANH_ERROR
