"""How messages show what someone gave: shortened, whatever it is."""

from collections.abc import Callable
from typing import Any

LONGEST_QUOTE = 200


def quote(value: object, show: Callable[[Any], str] = repr, longest: int = LONGEST_QUOTE) -> str:
    """What `show` makes of `value`, or as much of it as a message has room for.

    Args:
        value: Anything; numbers of more digits than Python writes, and what is nested too deeply, are named by type.
        show: Writes it.
        longest: Characters of it to keep.
    """
    try:
        text = show(value)
    except (ValueError, RecursionError):
        return f"<{type(value).__name__} too large to show>"
    return text if len(text) <= longest else f"{text[:longest]}..."
