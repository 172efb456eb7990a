"""JSON that users and other tools wrote, read without trust."""

import json
from typing import Any

from atoffer_rl.quote import quote

MOST_LEVELS = 100
"""Lists and objects in one another: more than anything holds that is written here, few enough to be walked through."""


def parse_json(text: str | bytes) -> Any:
    """What `text` is the JSON of.

    Raises:
        ValueError: If it is no JSON, is nested too deeply, gives a name twice in one object, or holds a number of more
            digits than Python reads.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return value
    raise ValueError("it is nested too deeply")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; which of two values of one name was meant, nobody can tell."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"an object gives {quote(name)} twice: keep one of them")
        values[name] = value
    return values


def _inside(value: Any) -> list[Any]:
    """The lists and objects that `value` holds itself."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, dict | list)]
