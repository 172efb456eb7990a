"""Reads the YAML files that hold hyperparameters, whatever is in them: within bounds, or one line that says why not."""

from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from atoffer_rl.errors import AtofferError
from atoffer_rl.quote import quote
from atoffer_rl.regular_file import read_regular
from atoffer_rl.whole_file import os_reason

MAX_CONFIG_BYTES = 2**16
"""A file of hyperparameters takes one kilobyte."""
MAX_DIGITS = 100
"""Of a whole number in such a file."""
MAX_ENTRIES = 256
"""Of a mapping in such a file, with all that is merged into it."""
MERGE_TAG = "tag:yaml.org,2002:merge"
_OF_YAML = (yaml.YAMLError, RecursionError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""Its own errors, and what its constructors raise besides."""


def read_section(path: Path, section: str) -> dict[Any, Any]:
    """What the `section` of the YAML file `path` maps names to.

    Raises:
        AtofferError: If the file cannot be read, or has no such section.
    """
    try:
        text = read_regular(path, MAX_CONFIG_BYTES).decode()
    except FileNotFoundError as error:
        raise AtofferError(f"there is no file of hyperparameters {path}: give the path of a YAML file") from error
    except OSError as error:
        raise AtofferError(f"cannot read hyperparameters {path}: {os_reason(error)}") from error
    except ValueError as error:
        raise AtofferError(
            f"cannot read hyperparameters {str(path)!r}: it names or holds no text: give the path of a YAML file"
        ) from error
    return _parsed(path, text, section)


def _parsed(path: Path, text: str, section: str) -> dict[str, Any]:
    """What the `section` of the YAML `text` maps names to."""
    try:
        sections = yaml.load(text, _BoundedLoader)
    except _OF_YAML as error:
        raise AtofferError(
            f"cannot read hyperparameters from {path}: it is not valid YAML{_fault(error)}: mend it, or choose another"
        ) from error
    if not isinstance(sections, dict) or section not in sections:
        raise AtofferError(f"cannot read hyperparameters from {path}: it needs a section {section}")
    values = sections[section]
    if not isinstance(values, dict):
        raise AtofferError(f"{path}: section {section} must map names to values")
    return values


def _fault(error: Exception) -> str:
    """Where YAML is wrong, and how, as far as `error` tells."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f", line {error.problem_mark.line + 1}: {quote(error.problem, _on_one_line)}"
    return f": {quote(error, _on_one_line)}"


def _on_one_line(value: object) -> str:
    return " ".join(str(value).split())


class _BoundedLoader(yaml.SafeLoader):
    """YAML's safe loader, but for long numbers, merges of merges, and what has two meanings."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """A whole number of at most `MAX_DIGITS` digits."""
        if len(node.value) > MAX_DIGITS:
            raise ConstructorError(problem=f"a number has over {MAX_DIGITS} digits", problem_mark=node.start_mark)
        number: int = super().construct_yaml_int(node)
        return number

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping as it is written, which gives each name once."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        names = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE_TAG:
                if key.value in names:
                    raise ConstructorError(problem=f"{quote(key.value)} is given twice", problem_mark=key.start_mark)
                names.add(key.value)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge into `node` what it asks for."""
        super().flatten_mapping(node)
        if len(node.value) > MAX_ENTRIES:
            raise ConstructorError(problem=f"a mapping has over {MAX_ENTRIES} entries", problem_mark=node.start_mark)


_BoundedLoader.add_constructor("tag:yaml.org,2002:int", _BoundedLoader.construct_yaml_int)
