"""Pictures: equal bytes everywhere, every point and label in them, nothing of the machine."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from hy3.report.plots import Curve, error_by_layer, scale_choice

EXPERTS = Curve("routed_expert", (1, 2, 3), (0.0066, 0.0067, 0.0065), (0.0090, 0.0091, 0.0089))
HEAD = Curve("lm_head", (), (0.0007,), (0.0007,))
SCRIPT = """
import hashlib
from hy3.report.plots import Curve, error_by_layer, scale_choice
curve = Curve("routed_expert", (1, 2, 3), (0.0066, 0.0067, 0.0065), (0.0090, 0.0091, 0.0089))
drawn = error_by_layer([curve], "exact", "max") + scale_choice([-1, 0, 1], [10, 70, 20])
print(hashlib.sha256(drawn).hexdigest())
"""
# What a user may have chosen for pictures of their own.
HOSTILE_STYLE = "svg.fonttype: path\nfont.size: 30\naxes.facecolor: black\nsvg.hashsalt: other\n"


def texts(svg: bytes) -> list[str]:
    nodes = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(node.itertext()) for node in nodes]


def both() -> bytes:
    return error_by_layer([EXPERTS], "exact", "max") + scale_choice([-1, 0, 1], [10, 70, 20])


@pytest.mark.parametrize("epoch", ["0", "1800000000"])
def test_same_bytes_in_another_folder_at_another_time_under_another_style(tmp_path, epoch):
    (tmp_path / "matplotlibrc").write_text(HOSTILE_STYLE)
    paths = os.pathsep.join(map(os.path.abspath, sys.path))
    changed = {"PYTHONPATH": paths, "SOURCE_DATE_EPOCH": epoch, "TZ": "Asia/Tokyo", "LANG": "C"}
    drawn = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | changed,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert drawn.stdout.strip() == hashlib.sha256(both()).hexdigest()


def test_the_style_of_the_place_would_show(tmp_path, monkeypatch):
    """The check above can fail: matplotlib itself follows such a file."""
    import matplotlib

    style = tmp_path / "matplotlibrc"
    style.write_text(HOSTILE_STYLE)
    monkeypatch.setattr("matplotlib.rcdefaults", lambda: matplotlib.rc_file(style))
    hostile = both()
    monkeypatch.undo()
    assert hostile != both()


def test_nothing_of_the_machine():
    svg = both().decode()
    assert not re.search(r"(?i)matplotlib v|\d{4}-\d\d-\d\d|/home|/tmp|/usr", svg)
    assert str(Path.home()) not in svg


def test_axes_and_legend_say_what_is_shown():
    shown = texts(error_by_layer([EXPERTS, HEAD], "exact", "max"))
    for label in (
        "layer",
        "squared error / squared weights",
        "routed_expert, exact",
        "routed_expert, max",
        "lm_head (in no layer)",
    ):
        assert label in shown
    assert "lm_head, max" not in " ".join(shown)  # the plain rule is all that it has
    shown = texts(scale_choice([-1, 0, 1], [10, 70, 20]))
    assert "groups of 16 weights, %" in shown and {"10.0", "70.0", "20.0"} <= set(shown)
    assert any("amax / 6" in text and "factor of 2" in text for text in shown)


def test_every_point_is_drawn():
    svg = error_by_layer([EXPERTS], "exact", "max").decode()
    lines = re.findall(r'id="line2d_\d+">\s*<path d="([^"]+)"[^>]*stroke: #0072b2', svg)
    assert [len(re.findall("[ML] ", line)) for line in lines[:2]] == [3, 3]


def test_files_are_small():
    layers = tuple(range(80))
    values = tuple(0.006 + 0.00001 * layer for layer in layers)
    curves = [Curve(f"class {i}", layers, values, values[::-1]) for i in range(4)]
    assert len(error_by_layer(curves, "exact", "max")) < 150_000
