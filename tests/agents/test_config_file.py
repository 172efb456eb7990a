"""What YAML files hold that were made by mistake, or to do harm."""

import contextlib
import os

import pytest

from atoffer_rl.agents.config_file import MAX_CONFIG_BYTES, read_section
from atoffer_rl.errors import AtofferError

REPEATED = "".join(f"a{k}: &a{k} {{<<: [{', '.join([f'*a{k - 1}'] * 10)}]}}\n" for k in range(1, 10))
MERGED = f"a0: &a0 {{lol: 1}}\n{REPEATED}own: *a9"


@pytest.fixture
def read(tmp_path):
    def call(content):
        (tmp_path / "own.yml").write_text(content)
        return read_section(tmp_path / "own.yml", "own")

    return call


def test_aliases_and_merges_are_read(read):
    assert read("a: &a {x: 1, y: 2}\nown: {<<: *a, y: 3}") == {"x": 1, "y": 3}


def test_what_is_given_twice_is_refused(read):
    with pytest.raises(AtofferError, match="line 3: 'x' is given twice"):
        read("own:\n  x: 1\n  x: 1")
    assert read("a: &a {x: 1}\nown: {<<: *a, x: 2}") == {"x": 2}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (f"own: {{n: 0x{'f' * 5000}}}", "line 1: a number has over 100 digits"),
        (f"own:\n  n: {'1' * 5000}", "line 2: a number has over 100 digits"),
        (f"own: {{0x{'f' * 500}: 1}}", "line 1: a number has over 100 digits"),
        (f"own: {{n: !tag{'x' * 5000} 1}}", "line 1: could not determine a constructor .{1,300}[.]{3}: mend it"),
        (f"own: {{n: !!float {'x' * 5000}}}", "could not convert string to float.{1,300}[.]{3}: mend it"),
        (f"own: {{{', '.join(f'n{k}: 1' for k in range(300))}}}", "line 1: a mapping has over 256 entries"),
        (" " * MAX_CONFIG_BYTES + "own: {}", "holds over 65536 bytes"),
        ("[" * 10_000, "not valid YAML: maximum recursion depth"),
    ],
)
def test_what_is_too_much_is_one_line(read, content, complaint):
    with pytest.raises(AtofferError, match=complaint) as failure:
        read(content)
    assert "\n" not in str(failure.value)


def test_merges_of_merges_are_read_at_once_or_refused(read):
    with contextlib.suppress(AtofferError):
        assert set(read(MERGED)) == {"lol"}


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(AtofferError, match="choose a regular file"):
            read_section(path, "own")
