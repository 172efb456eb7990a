from atoffer_rl.cli.progress_bar import ProgressBar


def test_phases_are_shown_on_stderr(capsys):
    with ProgressBar(visible=True) as bar:
        bar.show("compiling", 1, 4)
        bar.show("measuring", 0, None)
        bar.show("compiling", 3, 4)
        bar.show("measuring", 2, None, "best 3.0 us")
    printed = capsys.readouterr()
    assert not printed.out
    assert "compiling" in printed.err
    assert "3/4" in printed.err
    assert "best 3.0 us" in printed.err


def test_an_invisible_one_prints_nothing(capsys):
    with ProgressBar(visible=False) as bar:
        bar.show("compiling", 1, 4)
    assert capsys.readouterr() == ("", "")
