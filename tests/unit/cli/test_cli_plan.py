"""``hy3 plan``: text, JSON, and what is refused."""

from __future__ import annotations

import ast
import inspect
import json
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hy3.cli.app import app
from hy3.cli.plan import command as plan_command
from hy3.cli.plan_options import parse_acceptance
from hy3.errors import EnvironmentFault, InputError
from hy3.hardware.device import MIB, load_devices, parse_hardware
from hy3.hardware.probe import probe_hardware
from hy3.plan.request import Request
from support.real_models import HY_MT2
from support.tiny import TINY

MODEL = str(TINY)


def run(*arguments: str):
    return CliRunner().invoke(app, ["plan", *arguments])


def test_json_and_text() -> None:
    found = run(MODEL, "--hardware", "gb10", "--context", "4096", "--json")
    assert found.exit_code == 0
    result = json.loads(found.stdout)
    assert result["schema"] == "hy3.plan/1" and result["fits"]
    assert result["memory"]["weight_bytes"] > 23_000_000
    text = run(MODEL, "--hardware", "gb10", "--explain")
    assert text.exit_code == 0
    for words in ("fits:", "speed: cannot tell", "What one change would give", "Kernels"):
        assert words in text.stdout


def test_a_model_whose_speed_can_be_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HY_MT2))
    arguments = [str(tmp_path), "--recipe", "experts-nvfp4", "--hardware", "rtx-4090"]
    arguments += ["--context", "8192"]
    result = json.loads(run(*arguments, "--json").stdout)
    decode = result["decode"]
    assert decode["stream_low"] < decode["stream_tok_s"] < decode["stream_high"]
    assert decode["step_s"] == pytest.approx(1 / decode["stream_tok_s"])
    assert 0 < result["prefill_s"][0] < result["prefill_s"][1]
    text = run(*arguments).stdout
    assert "One decode step" in text and f"{decode['stream_tok_s']:.1f} tok/s a stream" in text


@pytest.mark.parametrize("hardware", ["gb10", "rtx-4090", "h200"])
@pytest.mark.parametrize("engine", ["vllm", "native"])
def test_what_cannot_be_told_is_no_number(hardware: str, engine: str) -> None:
    """hy3-tiny takes microseconds to read: on no device does its reading decide the speed."""
    arguments = [MODEL, "--hardware", hardware, "--engine", engine]
    result = json.loads(run(*arguments, "--json").stdout)
    decode = result["decode"]
    names = ("step_s", "stream_tok_s", "stream_low", "stream_high", "total_tok_s")
    assert [decode[name] for name in names] == [None] * 5 and result["prefill_s"] is None
    assert decode["confidence"].startswith("cannot tell: ")
    assert all(each["tok_s_stream"] is None for each in result["alternatives"])
    reasons = {each["setting"]: each["reason"] for each in result["choices"]}
    assert result["settings"]["draft_depth"] == 1 and "no speed can be told" in reasons["drafts"]
    text = run(*arguments).stdout
    assert "speed: cannot tell: " in text and "tok/s a stream (" not in text


def test_no_context_is_longer_than_the_model_knows(tmp_path: Path) -> None:
    """hy3-tiny knows 4096 positions, and memory for 200,000 tokens changes nothing about it."""
    arguments = [MODEL, "--hardware", "gb10", "--concurrency", "1"]
    result = json.loads(run(*arguments, "--json").stdout)
    assert result["settings"]["context"] == 4096 == result["largest_context"]
    longer = run(*arguments, "--context", "4097", "--json")
    result = json.loads(longer.stdout)
    assert [rule["identity"] for rule in result["broken_rules"]] == ["positions"]
    assert not result["fits"] and not any(each["fits"] for each in result["alternatives"])
    text = run(MODEL, "--hardware", "3xgb10", "--context", "200000").stdout
    refusals = [line for line in text.splitlines() if line.startswith("cannot run:")]
    assert refusals == [
        "cannot run: the model knows 4096 positions, a context of 200000 is longer "
        "(max_position_embeddings in its config.json)"
    ]
    export = ["--context", "200000", "--export", "systemd", "--export-to", str(tmp_path)]
    assert isinstance(run(*arguments, *export).exception, InputError)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--hardware", "2xgpu"],
        ["--hardware", "0xgb10"],
        ["--hardware", "9xh200"],
        ["--hardware", "gb10", "--engine", "llama"],
        ["--hardware", "gb10", "--kv-dtype", "int8"],
        ["--hardware", "gb10", "--drafts", "9"],
        ["--hardware", "99999999xgb10"],
        ["--hardware", "1" + 5000 * "0" + "xgb10"],
        ["--hardware", "gb10", "--concurrency", "1" + 400 * "0"],
        ["--hardware", "gb10", "--sequence-tokens", "5000"],
        ["--hardware", "gb10", "--context", "512", "--sequence-tokens", "1024"],
        ["--hardware", "gb10", "--free-gib", "inf"],
        ["--hardware", "gb10", "--free-gib", "122"],
        # Options of --export without it, and what no launch file can hold.
        ["--hardware", "gb10", "--nodes", "a,b"],
        ["--hardware", "gb10", "--export-to", "x"],
        ["--hardware", "gb10", "--model-path", "/x"],
        ["--hardware", "gb10", "--export", "compose", "--nodes", "a b"],
        ["--hardware", "gb10", "--export", "compose", "--nodes", "a,a"],
        ["--hardware", "gb10", "--export", "systemd", "--model-path", "/m\nExecStart=x"],
        ["--hardware", "gb10", "--export", "systemd", "--model-path", "/m\udcff"],
        # What a recipe would make lies in no folder yet.
        ["--hardware", "gb10", "--export", "systemd", "--recipe", "fp8"],
    ],
)
def test_refusals(arguments: list[str]) -> None:
    found = run(MODEL, *arguments)
    assert isinstance(found.exception, InputError) or found.exit_code == 2


def test_hardware_forms() -> None:
    assert parse_hardware("2xgb10").nodes == 2
    four = parse_hardware("4xh200")
    assert (four.nodes, four.per_node, four.devices) == (1, 4, 4)
    assert (parse_hardware("16xh100").nodes, parse_hardware("2x4xh100").per_node) == (2, 4)
    for device in load_devices().values():
        assert device.free_bytes < device.visible_bytes
        assert {"visible_mib", "free_mib", "bandwidth_gb_s"} <= device.sources.keys()


def test_probe() -> None:
    two = "NVIDIA H200, 143771, 143000\nNVIDIA H200, 143771, 120000\n"
    found = probe_hardware(lambda: two)
    assert found.hardware.text == "2 x H200 SXM" and found.free_bytes == 120_000 * MIB
    spark = probe_hardware(lambda: "NVIDIA GB10, [N/A], [N/A]\n", available=lambda: 7)
    assert spark.hardware.device.name == "gb10" and spark.free_bytes == 7
    for answer, message in (
        ("", "names no device"),
        ("Unheard Of 9000, 1, 1\n", "not in the table"),
        ("NVIDIA H200, 1, 1\nNVIDIA L40S, 1, 1\n", "mixes"),
        ("NVIDIA GeForce RTX 4090, 24564, [N/A]\n", "does not say how much memory"),
        # Their names hold those of other devices.
        ("NVIDIA A100-SXM4-40GB, 40960, 40000\n", "has 40.0 GiB, .* 80.0"),
        ("NVIDIA H100 NVL, 95830, 95000\n", "has 93.6 GiB"),
        ("NVIDIA RTX A1000 6GB Laptop GPU, 6144, 6000\n", "not in the table"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU, 16376, 16000\n", "not in the table"),
        ("NVIDIA GB200, 189471, 189000\n", "not in the table"),
        ("NVIDIA H100 PCIe, 81559, 81000\n", "not in the table"),
    ):
        with pytest.raises(EnvironmentFault, match=message):
            probe_hardware(lambda answer=answer: answer)


def test_export_writes_files_and_refuses_what_does_not_fit(tmp_path: Path) -> None:
    arguments = [MODEL, "--hardware", "gb10", "--export", "compose", "--export-to", str(tmp_path)]
    found = run(*arguments, "--model-path", "/models/tiny", "--json")
    assert json.loads(found.stdout)["exported"] == [str(tmp_path / "compose.node0.yaml")]
    assert '"source": "/models/tiny"' in (tmp_path / "compose.node0.yaml").read_text()
    refused = run(*arguments, "--context", "2000000000")
    assert "does not fit is not written" in str(refused.exception)
    # The same again is no fault; what somebody has edited stays.
    again = run(*arguments, "--model-path", "/models/tiny")
    assert again.exit_code == 0
    (tmp_path / "compose.node0.yaml").write_text("mine")
    kept = run(*arguments, "--model-path", "/models/tiny")
    assert isinstance(kept.exception, InputError) and "--export-to" in kept.exception.hint
    assert (tmp_path / "compose.node0.yaml").read_text() == "mine"


def test_addresses_are_never_dropped(tmp_path: Path) -> None:
    export = ["--export", "systemd", "--export-to", str(tmp_path)]
    arguments = [MODEL, "--hardware", "gb10", "--nodes"]
    for more in (["a,b", *export], ["a", *export, "--hardware", "2xgb10", "--tp", "2"], ["a"]):
        refused = run(*arguments, *more).exception
        assert isinstance(refused, InputError) and refused.where == "--nodes"
    assert not list(tmp_path.iterdir())
    assert run(*arguments, "a, b", *export, "--hardware", "2xgb10", "--tp", "2").exit_code == 0
    assert "VLLM_HOST_IP=b" in (tmp_path / "hy3-engine.node1.service").read_text()


def test_splits_can_be_asked_for(tmp_path: Path) -> None:
    arguments = [MODEL, "--hardware", "2xgb10", "--tp", "1", "--pp", "2", "--ep", "--json"]
    result = json.loads(run(*arguments).stdout)
    settings = result["settings"]
    assert (settings["pipeline_parallel"], settings["expert_parallel"]) == (2, True)
    # Two stages, so two machines, and no drafts of the planner's own.
    assert result["fits"] and settings["draft_depth"] == 0
    assert "stages" in [term["name"] for term in result["decode"]["terms"]]
    assert "drafts 1" not in [each["name"] for each in result["alternatives"]]
    result = json.loads(run(*arguments, "--drafts", "1").stdout)
    assert [rule["identity"] for rule in result["broken_rules"]] == ["drafts_with_stages"]
    result = json.loads(run(MODEL, "--hardware", "gb10", "--pp", "2", "--json").stdout)
    assert [rule["identity"] for rule in result["broken_rules"]] == ["devices"]
    export = ["--export", "compose", "--nodes", "a,b", "--export-to", str(tmp_path)]
    assert run(*arguments, *export).exit_code == 0
    for rank in (0, 1):
        text = (tmp_path / f"compose.node{rank}.yaml").read_text()
        assert '"--pipeline-parallel-size", "2"' in text and "--enable-expert-parallel" in text


def test_everything_that_can_be_asked_is_asked_for() -> None:
    """A field of the request that no option sets would be a default that nobody can change."""
    tree = ast.parse(inspect.getsource(plan_command))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    request = next(each for each in calls if getattr(each.func, "id", "") == "Request")
    assert {each.arg for each in request.keywords} == {each.name for each in fields(Request)}


def test_acceptance_as_hy3_bench_prints_it() -> None:
    """per_position counts all steps: 0.2 of them accept draft 2, which are 0.4 of half."""
    arguments = [MODEL, "--hardware", "gb10", "--json"]
    given = json.loads(run(*arguments, "--drafts", "2", "--acceptance", "0.5,0.2").stdout)
    assert given["decode"]["tokens_per_step"] == pytest.approx(1.7)
    assert parse_acceptance("0.5,0.2") == pytest.approx((0.5, 0.4))
    assert parse_acceptance("0,0") == (0, 0)
    for text in ("0.5,0.6", "1.1", "-0.1", "nan", "a", "0.5,", ""):
        with pytest.raises(InputError, match="no shares of steps"):
            parse_acceptance(text)
    few = run(*arguments, "--drafts", "2", "--acceptance", "0.5").exception
    assert isinstance(few, InputError) and "--acceptance" in str(few.hint)
    assert isinstance(run(*arguments, "--acceptance", "").exception, InputError)


def test_a_recipe_needs_no_more_than_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((Path(MODEL) / "config.json").read_text())
    sizes = {}
    for recipe in ("experts-nvfp4", "all-nvfp4"):
        found = run(str(tmp_path), "--hardware", "gb10", "--recipe", recipe, "--json")
        sizes[recipe] = json.loads(found.stdout)["memory"]["weight_bytes"]
    whole = json.loads(run(MODEL, "--hardware", "gb10", "--json").stdout)["memory"]["weight_bytes"]
    assert sizes["all-nvfp4"] < sizes["experts-nvfp4"] < whole
    assert isinstance(run(MODEL, "--hardware", "gb10", "--recipe", "none").exception, InputError)


def test_the_picture_is_written_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "new" / "memory.svg"
    found = run(MODEL, "--hardware", "gb10", "--picture", str(path), "--json")
    assert json.loads(found.stdout)["pictures"] == [str(path)]
    assert path.read_text().startswith("<?xml")
    refused = run(MODEL, "--hardware", "gb10", "--picture", "memory.png")
    assert isinstance(refused.exception, InputError) and refused.exception.where == "--picture"


def test_many_devices_take_no_time() -> None:
    found = run(MODEL, "--hardware", "999999xgb10", "--json")
    assert json.loads(found.stdout)["settings"]["tensor_parallel"] <= 8


@pytest.mark.parametrize("free", ["0.1", "1"])
def test_no_room_at_all_is_told(tmp_path: Path, free: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HY_MT2))
    found = run(str(tmp_path), "--recipe", "fp8", "--hardware", "gb10", "--free-gib", free)
    assert found.exit_code == 0 and "does not fit" in found.stdout
    # What takes the memory is shown; no speed of what cannot run, and nothing that does not help.
    assert "Memory of the fullest rank" in found.stdout
    assert "no single change" in found.stdout and "tok/s" not in found.stdout


def test_of_what_cannot_run_only_what_helps_is_shown() -> None:
    """hy3-tiny has two KV heads: TP=1 and TP=2 run on three devices, and TP=3 does not."""
    arguments = [MODEL, "--hardware", "3xgb10", "--tp", "3"]
    text = run(*arguments).stdout
    rules = json.loads(run(*arguments, "--json").stdout)["broken_rules"]
    assert rules and text.count("cannot run: ") == len(rules)
    for absent in ("Memory of the fullest rank", "speed", "KV cache", "drafts 0"):
        assert absent not in text
    rows = [line.split("│") for line in text.splitlines() if line.startswith("│")]
    assert [(row[1].strip(), row[5].strip()) for row in rows] == [("TP=1", "yes"), ("TP=2", "yes")]
    assert "One change that makes it fit" in text


def test_a_share_that_is_not_free_is_refused_by_engines() -> None:
    """A GB10 has 111.4 of 121.69 GiB free: 0.92 is more (vLLM's default), 0.91 is not."""
    share = [MODEL, "--hardware", "gb10", "--utilization"]
    assert json.loads(run(*share, "0.91", "--json").stdout)["fits"]
    refused = json.loads(run(*share, "0.92", "--json").stdout)
    assert not refused["fits"] and not any(each["fits"] for each in refused["alternatives"])
    assert "112.0 GiB, 111.4 GiB are free" in run(*share, "0.92").stdout
    less = run(*share, "0.90", "--free-gib", "102")
    assert "does not fit" in less.stdout


def test_devices_that_would_do_nothing_are_named_with_the_rule() -> None:
    """hy3-tiny has two KV heads; a third device can hold none."""
    found = run(MODEL, "--hardware", "3xgb10")
    line = next(line for line in found.stdout.splitlines() if "would do nothing" in line)
    assert "2 KV heads cannot be split over TP=3" in line


def test_sequences_that_wait_are_told() -> None:
    found = run(MODEL, "--hardware", "gb10", "--concurrency", "100000")
    assert "such sequences at a time" in found.stdout
