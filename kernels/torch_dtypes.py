"""Formats of numbers as torch names them. Importing this module loads torch."""

import torch

from atoffer_rl.dtype import DType

TORCH_DTYPES = {
    DType.FLOAT32: torch.float32,
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
    DType.INT32: torch.int32,
}
