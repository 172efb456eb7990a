"""The README says what the records and the package say, and its commands exist."""

import re
import shlex
from importlib import util
from pathlib import Path

import pytest
import typer

from atoffer_rl.cli.app import app
from atoffer_rl.workload import Workload
from tests.synthetic import synthetic_table

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
COMMANDS = list(re.findall(r"^(?:atoffer|python train_agent\.py) .*", TEXT, re.MULTILINE))


@pytest.fixture(scope="module")
def generator():
    spec = util.spec_from_file_location("readme", ROOT / "benchmarks" / "readme.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def written(generator, monkeypatch, tmp_path):
    """The generator with files of its own, all just written."""
    monkeypatch.setattr(generator, "README", tmp_path / "README.md")
    monkeypatch.setattr(generator, "PICTURE", tmp_path / "search.svg")
    monkeypatch.setattr(generator, "DETAILS", tmp_path / "attention.md")
    monkeypatch.setattr("sys.argv", ["readme.py"])
    generator.README.write_text(TEXT)
    assert generator.main() == 0
    monkeypatch.setattr("sys.argv", ["readme.py", "--check"])
    return generator


def test_generated_parts_are_up_to_date(generator):
    assert generator.filled(TEXT) == TEXT, "run python benchmarks/readme.py"
    assert generator.DETAILS.read_text() == generator.attention_details(), "run python benchmarks/readme.py"
    picture = generator.draw_search(generator.load("search.json"))
    assert generator.PICTURE.read_bytes() == picture, "run python benchmarks/readme.py"


def test_what_was_written_passes_the_check(written):
    assert written.PICTURE.read_bytes().rstrip().endswith(b"</svg>")
    assert written.main() == 0


@pytest.mark.parametrize(("name", "word"), [("README", "units"), ("PICTURE", "units"), ("DETAILS", "speedup")])
def test_the_check_finds_what_differs_and_leaves_it(written, name, word):
    path = getattr(written, name)
    path.write_text(changed := path.read_text().replace(word, "changed"))
    assert written.main() == 1
    assert path.read_text() == changed


def test_the_check_misses_a_picture_that_is_not_there(written):
    written.PICTURE.unlink()
    assert written.main() == 1
    assert not written.PICTURE.exists()


def test_the_two_commands_are_shown():
    assert "make train" in TEXT
    assert "make test" in TEXT


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\]\(((?!http)[^)#]+)\)", TEXT))))
def test_links_lead_somewhere(name):
    assert (ROOT / name).exists()


@pytest.mark.parametrize("line", COMMANDS)
def test_options_exist(line):
    words = shlex.split(line.split("#")[0].replace("python train_agent.py", "atoffer train"))
    command = typer.main.get_command(app).commands[words[1]]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words[2:] if word.startswith("--")} <= known


def test_the_python_example_runs(monkeypatch, capsys):
    table = synthetic_table(Workload(batch=16, seq_len=256, mask="strided"))
    monkeypatch.setattr("atoffer_rl.records.recorded_tables", lambda *_: (table,))
    (example,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    exec(example.replace('"auto"', '"replay"'), {})
    assert "[0," in capsys.readouterr().out
