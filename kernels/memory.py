"""What the libraries that take GPU memory say where there is too little of it."""

_SAYINGS = ("out of memory", "alloc failed")


def lacks_memory(error: BaseException) -> bool:
    """Whether the GPU had too little memory; CuPy, torch, cuBLAS and the driver say so in classes of their own."""
    text = str(error).lower().replace("_", " ")
    return any(saying in text for saying in _SAYINGS)
