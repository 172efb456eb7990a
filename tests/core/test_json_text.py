"""JSON that may be anything."""

import pytest

from atoffer_rl.json_text import MOST_LEVELS, parse_json


def test_json_is_read():
    assert parse_json('{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
    assert parse_json(b"3") == 3


@pytest.mark.parametrize("pair", ["[]", ('{"a":', "}")], ids=["lists", "objects"])
@pytest.mark.parametrize("levels", [MOST_LEVELS + 1, 500, 900, 100_000])
def test_what_is_nested_too_deeply_is_refused(pair, levels):
    first, last = pair
    text = first * (MOST_LEVELS - 1) + "[]" + last * (MOST_LEVELS - 1)
    assert parse_json(text)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(first * (levels - 1) + "[]" + last * (levels - 1))


@pytest.mark.parametrize("text", ["", "{", "x", "9" * 5000, b"\xff\xff\xff"], ids=lambda text: text[:9])
def test_what_is_no_json(text):
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(text)


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 1}', '[{"c": {"a": {}, "a": []}}]'])
def test_a_name_given_twice_is_refused(text):
    with pytest.raises(ValueError, match="an object gives 'a' twice"):
        parse_json(text)
