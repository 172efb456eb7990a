"""The frame: help, version, options."""

import inspect
import re
from pathlib import Path
from typing import Annotated, get_args, get_origin

import pytest
import typer

from atoffer_rl import __version__
from atoffer_rl.cli.app import app, run
from atoffer_rl.cli.options import WORKLOAD_OPTIONS, options_of, workload_options
from atoffer_rl.workload import FIELD_NAMES, Workload


def leaves(group, path=()):
    """Every command as the words that lead to it."""
    for name, command in getattr(group, "commands", {}).items():
        yield from leaves(command, (*path, name)) if hasattr(command, "commands") else [(*path, name)]


def summaries(group):
    """Every command of `group` with the first line of its help."""
    return [(name, command.help.strip().splitlines()[0]) for name, command in group.commands.items()]


LONGEST_SUMMARY = 55
GROUP = typer.main.get_command(app)
COMMANDS = list(leaves(GROUP))


def test_bare_help_lists_every_command(atoffer):
    outcome = atoffer()
    assert outcome.status == 0
    for name in GROUP.commands:
        assert f"\n  {name} " in outcome.out


@pytest.mark.parametrize("group", sorted({words[0] for words in COMMANDS if len(words) > 1}))
def test_a_bare_group_says_what_it_holds(capsys, group):
    assert run([group]) == 2
    assert "Commands:" in capsys.readouterr().err


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(atoffer, words):
    outcome = atoffer(*words, "--help")
    assert outcome.status == 0
    assert f"Example: atoffer {' '.join(words)}" in " ".join(outcome.out.split())


@pytest.mark.parametrize("group", [GROUP, *(GROUP.commands[name] for name in ("records", "bench"))])
def test_summaries_fit_the_list_of_commands(group):
    assert {name: help_of for name, help_of in summaries(group) if len(help_of) > LONGEST_SUMMARY} == {}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_says_what_values_are(atoffer, words):
    options = atoffer(*words, "--help").out.partition("Options:")[2]
    assert not re.search(r"<(str|int|float|path|list)|x<=\d{6}", options)
    assert str(Path.cwd()) not in options


def options_declared(group):
    """Every option as its parameter's name, the word for its value and what typer was told of its flag, if anything."""
    for found in group.registered_groups:
        yield from options_declared(found.typer_instance)
    for found in group.registered_commands:
        for name, parameter in inspect.signature(found.callback).parameters.items():
            for told in get_args(parameter.annotation):
                if isinstance(told, typer.models.OptionInfo):
                    yield name, told.metavar, told.default  # in an annotation, flags come first


def test_options_called_like_their_values_say_their_names():
    """typer 0.27 takes the flag from such a word for the value: --FOLDER."""
    options = list(options_declared(app))
    assert len(options) > 100
    flags = [(name, flag) for name, value, flag in options if (value or "").lower() == name]
    assert flags
    assert [name for name, flag in flags if flag != f"--{name}"] == []


def test_a_program_that_is_one_command_is_called_by_its_own_name(capsys):
    assert run(["-h"], "train_agent.py", "train") == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: train_agent.py [OPTIONS]\n")
    assert "Example: train_agent.py --batch" in out
    assert run(["--batch", "many"], "train_agent.py", "train") == 2
    assert capsys.readouterr().err.endswith(": see train_agent.py --help\n")
    assert run(["--budget", "1", "--seq-len", "65"], "train_agent.py", "train") == 1
    assert capsys.readouterr().err.startswith("train_agent.py: ")


def test_version(atoffer):
    assert atoffer("--version").out == f"atoffer_rl {__version__}\n"


def test_a_workload_option_for_every_field():
    assert [option.name for option in WORKLOAD_OPTIONS] == list(FIELD_NAMES)
    assert Workload(**{option.name: option.default for option in WORKLOAD_OPTIONS}) == Workload()
    for option in WORKLOAD_OPTIONS:
        assert get_origin(option.annotation) is Annotated
        assert isinstance(option.default, get_args(option.annotation)[0])


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (Workload(), "--batch 16 --seq-len 256 --mask strided"),
        (Workload(1, 128, mask="fixed"), "--batch 1 --seq-len 128 --mask fixed"),
        (Workload(mask="fixed:block=3", layers=2), "--batch 16 --seq-len 256 --layers 2 --mask fixed:block=3"),
        (
            Workload(2, 64, mask="document:lengths=20/44", lengths="uniform", packed=True),
            "--batch 2 --seq-len 64 --mask document:lengths=20/44 --lengths uniform:shortest=1,longest=64 --packed",
        ),
    ],
)
def test_a_workload_as_options(workload, words):
    assert options_of(workload) == words


def test_workload_options_build_the_workload():
    seen = []

    @workload_options
    def command(*, workload: Workload, budget: int = 3) -> None:
        """Do it."""
        seen.append((workload, budget))

    assert next(iter(inspect.signature(command).parameters)) == "budget"
    own = typer.Typer()
    own.command()(command)
    own(["--batch", "2", "--seq-len", "100", "--mask", "fixed", "--budget", "5"], standalone_mode=False)
    assert seen == [(Workload(batch=2, seq_len=100, mask="fixed"), 5)]
    assert seen[0][0].mask == "fixed:block=10"


def test_ctrl_c_is_status_130(monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("atoffer_rl.masks.parse_mask", interrupt)
    monkeypatch.setattr("atoffer_rl.cli.masks.parse_mask", interrupt)
    assert run(["masks", "dense"]) == 130
    assert capsys.readouterr().err == "atoffer: interrupted; everything measured so far is kept\n"
