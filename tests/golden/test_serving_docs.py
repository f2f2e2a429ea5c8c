"""docs/serving.md says what the code does: limits, efforts, metrics, endpoints, codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hy3.chat.template import _EFFORTS
from hy3.server import schema
from hy3.server.app import create_app
from hy3.server.keys import ApiKeys
from hy3.server.limits import Limits
from hy3.server.served import load_served_model
from support.fault_backend import FaultBackend
from support.served_models import random_folder

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_limits() -> None:
    limits, table = Limits(), section("Limits")
    for line in (
        f"| body | {limits.max_body_bytes} bytes |",
        f"| sequences at once | {limits.max_running} (",
        f"| waiting sequences | {limits.max_waiting} |",
        f"| time of a request | {limits.request_seconds:g} s |",
        f"| drain after a signal | {limits.drain_seconds} s |",
        f"| `n` | {schema.MAX_CHOICES} |",
        f"| `stop` | {schema.MAX_STOPS} strings of 512 characters |",
        f"| `top_logprobs` | {schema.MAX_TOP_LOGPROBS} |",
    ):
        assert line in table
    assert f"after {limits.keep_alive_seconds:g} s of silence" in TEXT


def test_codes() -> None:
    """What the table leaves out is of one request's own making, or nothing that a client sees."""
    sources = (ROOT / "src" / "hy3" / "server").glob("*.py")
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    sent = set(re.findall(r'ApiError\(\s*(\d{3}),\s*"(\w+)"', code))
    documented = set(re.findall(r"(\d{3}) `(\w+)`", section("Limits")))
    assert documented <= sent
    left_out = {name for _, name in sent} - {name for _, name in documented}
    assert left_out == {"too_many_choices", "grammar_failure", "internal_error"}


def test_efforts() -> None:
    table = {}
    for row in section("Reasoning effort").splitlines():
        names = re.findall(r"`(\w+)`", row)
        if row.startswith("| `"):
            table |= dict.fromkeys(names[:-1], names[-1])
    assert table == _EFFORTS


@pytest.fixture(scope="module")
def app():
    backend = FaultBackend()
    return create_app(backend, load_served_model(random_folder(), "m"), Limits(), ApiKeys())


def test_endpoints(app) -> None:
    documented = set(re.findall(r"`(?:GET|POST) (/[^`]*)`", section("Endpoints")))
    paths = {path.replace("{model}", "{id}") for path in app.openapi()["paths"]}
    assert documented == paths


def test_request_fields() -> None:
    fields = set(schema.ChatBody.model_fields) | set(schema.CompletionBody.model_fields)
    named = set(re.findall(r"`(\w+)`", section("Endpoints")))
    assert fields - named == {"model", "messages", "prompt", "suffix", "best_of"}


def test_metrics() -> None:
    from hy3.engine.stats import EngineStats
    from hy3.server.metrics import Metrics

    stats = EngineStats(0, 0, 0, 1, 0, 0, 0, 0, 0, 0, (1,), (1,))
    metrics = Metrics("m", lambda: stats)
    metrics.finished("stop")
    page = metrics.render().decode()
    exposed = re.findall(r"^# TYPE hy3:(\w+) (?:counter|gauge|histogram)$", page, re.M)
    names = {name.removesuffix("_total") for name in exposed if not name.endswith("_created")}
    rows = [row for row in section("Metrics").splitlines() if row.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert documented == names
