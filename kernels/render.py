"""Rendering of `.cu.j2` files: pure text, same inputs, same bytes."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATE_FOLDER = Path(__file__).parent / "templates"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE_FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["flag"] = _flag
    return environment


def _flag(value: object) -> str:
    """`value` as a literal of device code."""
    return "true" if value else "false"


def render(file_name: str, **constants: object) -> str:
    """The text of `file_name` with `constants` filled in; an unknown name in the file is an error."""
    return _environment().get_template(file_name).render(constants)
