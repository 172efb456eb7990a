"""What messages show."""

from atoffer_rl.quote import LONGEST_QUOTE, quote


def test_what_is_short_is_shown_whole():
    assert quote("a\nb") == r"'a\nb'"
    assert quote([1, None]) == "[1, None]"
    assert quote("plain", str) == "plain"


def test_what_is_long_is_shortened():
    assert quote("x" * 10**6) == f"'{'x' * (LONGEST_QUOTE - 1)}..."
    assert quote("xyz", str, longest=2) == "xy..."


def test_what_python_does_not_show_is_named():
    nested = []
    for _ in range(10**5):
        nested = [nested]
    assert quote(10**5000) == "<int too large to show>"
    assert quote({"a": (10**5000,)}) == "<dict too large to show>"
    assert quote(nested) == "<list too large to show>"
    while nested:  # one by one: to let go of all at once is a recursion, too
        nested = nested[0]
