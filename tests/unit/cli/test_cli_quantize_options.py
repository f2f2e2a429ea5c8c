"""``hy3 requantize`` takes what ``hy3 quantize`` takes; dry runs of both, and what they print."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hy3.cli.app import app
from support.quantizing import tree
from support.tiny import TINY


def options_of(verb: str) -> dict[str, object]:
    command = typer.main.get_command(app).commands[verb]
    return {
        each.opts[0]: (each.opts, each.help, each.default, each.show_default)
        for each in command.params
        if each.opts[0].startswith("--")
    }


def hy3(*arguments: str | Path):
    found = CliRunner().invoke(app, [*map(str, arguments)])
    assert found.exception is None, found.exception
    return found


@pytest.fixture(scope="module")
def quantized(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("quantized") / "out"
    hy3("quantize", TINY, out, "--json")
    return out


@pytest.fixture(autouse=True)
def short(monkeypatch) -> None:
    """A dry run measures for less time here."""
    monkeypatch.setattr("hy3.quantize.prediction._COMPUTE_SECONDS", 0.05)
    monkeypatch.setattr("hy3.quantize.prediction._WRITE_BYTES", 2**20)


def test_the_options_are_the_same() -> None:
    ours, theirs = options_of("quantize"), options_of("requantize")
    assert ours.keys() - theirs.keys() == {"--keep-nonfinite"}
    assert theirs.keys() - ours.keys() == {"--source"}
    for name in ours.keys() & theirs.keys():
        assert ours[name] == theirs[name]
    assert {"--dry-run", "--mtp", "--format", "--fp8-activations", "--lm-head"} <= theirs.keys()


@pytest.mark.parametrize(
    "options",
    [
        "--mtp bf16 --format modelopt --scales four-over-six --recipe all-nvfp4",
        "--lm-head fp8 --fp8-activations dynamic --recipe experts-nvfp4-attn-fp8",
    ],
)
def test_requantize_does_what_the_options_say(
    quantized: Path, tmp_path: Path, options: str
) -> None:
    """The same as ``quantize`` with these options makes of the decoded file."""
    options = [*options.split(), "--json"]
    dry = json.loads(hy3("requantize", quantized, tmp_path / "a", *options, "--dry-run").stdout)
    assert dry["dry_run"] and os.listdir(tmp_path) == []
    done = json.loads(hy3("requantize", quantized, tmp_path / "a", *options).stdout)
    assert (done["weights"], done["source_scheme"]) == (dry["weights"], "nvfp4-w4a16")
    for name in ("output_bytes", "source_bytes", "parameters", "shards"):
        assert dry[name] == done[name]
    hy3("dequantize", quantized, tmp_path / "twin")
    hy3("quantize", tmp_path / "twin", tmp_path / "b", *options)
    shards = [name for name in tree(tmp_path / "b") if name.endswith(".safetensors")]
    assert shards and all(tree(tmp_path / "a")[n] == tree(tmp_path / "b")[n] for n in shards)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--recipe", "fp8"], "no scales are searched: nothing becomes NVFP4"),
        (["--scales", "max"], "scales follow rule max, without a search, on cpu (as asked)"),
        ([], "scales are searched on cpu (as asked)"),
    ],
)
def test_where_scales_are_searched_is_said_where_they_are(
    quantized: Path, tmp_path: Path, options: list[str], line: str
) -> None:
    options = [*options, "--device", "cpu", "--dry-run", "--quiet"]
    for verb, model in (("quantize", TINY), ("requantize", quantized)):
        assert hy3(verb, model, tmp_path / "out", *options).stdout.splitlines()[0] == line


def test_the_rows_add_up(tmp_path: Path, monkeypatch) -> None:
    """Of an activity to its time, of all to the time without overlap, and so in the table."""
    monkeypatch.setattr("hy3.units.format_seconds", lambda seconds: f"{seconds:.9f}s")
    command = ["quantize", TINY, tmp_path / "out", "--dry-run", "--recipe", "fp8"]
    text = hy3(*command).stdout
    rows = [line.split("│") for line in text.splitlines() if line.count("│") == 5]
    shown = {row[1].strip(): float(row[4].strip().rstrip("s")) for row in rows}
    assert list(shown) == [
        "read source",
        "compute copy",
        "compute fp8-block",
        "compute for reading and writing",
        "write output",
    ]
    compute = sum(value for name, value in shown.items() if name.startswith("compute"))
    longest = max(shown["read source"], compute, shown["write output"])
    summary = next(line for line in text.splitlines() if line.startswith("about "))
    assert float(summary.split()[1].rstrip("s")) == pytest.approx(longest, abs=1e-7)
    total = summary.partition("takes longest; ")[2].partition("s (all rows)")[0]
    assert float(total) == pytest.approx(sum(shown.values()), abs=1e-7)
