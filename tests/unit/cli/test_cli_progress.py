"""Progress speaks on stderr only, and adds up from any number of threads."""

from __future__ import annotations

import threading

from hy3.cli import progress as progress_module
from hy3.cli.output import Output


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
