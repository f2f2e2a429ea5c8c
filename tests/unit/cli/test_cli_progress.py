"""Progress speaks on stderr only, and adds up from any number of threads."""

from __future__ import annotations

import threading

from hy3.cli import progress as progress_module
from hy3.cli.output import Output
from hy3.quantize.stats import WeightStats


def test_plain_lines_off_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(progress_module, "_SECONDS_BETWEEN_LINES", 0.0)
    with Output(as_json=True).progress("quantize", 4_000_000) as advance:
        advance(1_000_000)
        threads = [threading.Thread(target=advance, args=(1_000_000,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert lines[0].startswith("quantize: 1.00 MB of 4.00 MB, ") and lines[0].endswith(" left")
    assert lines[3].startswith("quantize: 4.00 MB of 4.00 MB, 0 ms left") and len(lines) == 4


def test_short_work_and_quiet_print_nothing(capsys):
    for quiet in (True, False):
        with Output(quiet=quiet).progress("verify", 10) as advance:
            advance(10)
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""


def test_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress_module.sys.stderr, "isatty", lambda: True, raising=False)
    with Output().progress("verify", 10) as advance:
        advance(10)
    assert "verify" in capsys.readouterr().err


def test_unknown_total(capsys, monkeypatch):
    monkeypatch.setattr(progress_module, "_SECONDS_BETWEEN_LINES", 0.0)
    with Output().progress("copy", 0) as advance:
        advance(1000)
    assert capsys.readouterr().err == "copy: 1.00 kB\n"


def test_error_so_far_beside_the_plain_rule(capsys, monkeypatch):
    monkeypatch.setattr(progress_module, "_SECONDS_BETWEEN_LINES", 0.0)
    with Output().progress("quantize", 0) as advance:
        advance(1000)
        advance(1000, WeightStats(error=1.0, max_error=2.0, energy=100.0))
        advance(1000, WeightStats(error=3.0, max_error=4.0, energy=100.0))
    assert capsys.readouterr().err.splitlines() == [
        "quantize: 1.00 kB",
        "quantize: 2.00 kB, error 0.01000, max 0.02000",
        "quantize: 3.00 kB, error 0.02000, max 0.03000",
    ]


def test_the_bar_shows_the_error_on_an_ordinary_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress_module.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Output().progress("quantize", 10**12) as advance:
        advance(10**9, WeightStats(error=0.6, max_error=0.9, energy=100.0))
    assert "error 0.00600, max 0.00900" in capsys.readouterr().err
