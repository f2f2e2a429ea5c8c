"""Launch files: Compose files that the published schema accepts, units that systemd accepts."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import ComposeSpecification
from pydantic import ValidationError

from hy3.deploy.engine_command import Launch, engine_command, environment
from hy3.deploy.export import export_compose, export_systemd
from hy3.errors import InputError
from hy3.hardware.device import parse_hardware
from hy3.plan.settings import Settings

SPARKS = parse_hardware("2xgb10")
TWO = Settings(
    "vllm",
    tensor_parallel=2,
    kv_dtype="fp8",
    context=131072,
    concurrency=6,
    draft_depth=1,
    graphs=False,
)
LAUNCH = Launch("/models/Hy3 NVFP4 100%", "127.0.0.1", 8000, ("192.168.100.10", "192.168.100.11"))


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_the_seeds_launch_on_two_sparks() -> None:
    leader = engine_command(TWO, SPARKS, 0.90, LAUNCH, 0)
    follower = engine_command(TWO, SPARKS, 0.90, LAUNCH, 1)
    assert leader[:3] == ["vllm", "serve", LAUNCH.model]
    assert option(leader, "--gpu-memory-utilization") == "0.90"
    assert option(leader, "--kv-cache-dtype") == "fp8_e4m3"
    assert option(leader, "--moe-backend") == "marlin"
    assert "--enforce-eager" in leader
    drafts = json.loads(option(leader, "--speculative-config"))
    assert drafts == {"method": "mtp", "num_speculative_tokens": 1}
    assert (option(leader, "--node-rank"), option(follower, "--node-rank")) == ("0", "1")
    assert option(follower, "--master-addr") == "192.168.100.10"
    assert "--headless" in follower and "--headless" not in leader
    assert environment(TWO, SPARKS, LAUNCH, 1)["VLLM_HOST_IP"] == "192.168.100.11"


def test_autotuning_may_take_its_time() -> None:
    one = parse_hardware("h200")
    launch = Launch("/m", "127.0.0.1", 1)
    assert environment(Settings("vllm"), one, launch, 0) == {"VLLM_ENGINE_READY_TIMEOUT_S": "3600"}
    assert environment(TWO, SPARKS, LAUNCH, 0)["VLLM_ENGINE_READY_TIMEOUT_S"] == "3600"
    assert environment(Settings("sglang"), one, launch, 0) == {}


def test_requests_without_an_effort_get_one() -> None:
    command = engine_command(TWO, SPARKS, 0.90, LAUNCH, 0)
    kwargs = json.loads(option(command, "--default-chat-template-kwargs"))
    assert kwargs == {"reasoning_effort": "low"}


def test_addresses_are_asked_for() -> None:
    with pytest.raises(InputError, match="2 machines need as many addresses, 0 are given"):
        engine_command(TWO, SPARKS, 0.9, Launch("/m", "127.0.0.1", 8000), 0)


def test_each_address_is_a_machine_that_is_used() -> None:
    """Two ranks on four Sparks take two of them; one rank takes one, which needs no address."""
    four = parse_hardware("4xgb10")
    command = engine_command(TWO, four, 0.9, LAUNCH, 1)
    assert option(command, "--nnodes") == "2" and len(export_systemd(TWO, four, 0.9, LAUNCH)) == 2
    one = Settings("vllm")
    assert "--nnodes" not in engine_command(one, SPARKS, 0.9, Launch("/m", "::", 1, ("a",)), 0)
    for settings, count in ((TWO, 1), (TWO, 3), (TWO, 4), (one, 2)):
        launch = Launch("/m", "::", 1, tuple("abcd"[:count]))
        with pytest.raises(InputError, match=f"{count} (addresses )?are given") as caught:
            export_compose(settings, four, 0.9, launch)
        assert caught.value.where == "--nodes"


def test_stages_and_whole_experts() -> None:
    split = Settings("vllm", tensor_parallel=4, pipeline_parallel=2, expert_parallel=True)
    machines = parse_hardware("2x4xh100")
    vllm = engine_command(split, machines, 0.9, LAUNCH, 1)
    assert option(vllm, "--pipeline-parallel-size") == "2" and "--enable-expert-parallel" in vllm
    assert (option(vllm, "--nnodes"), option(vllm, "--node-rank")) == ("2", "1")
    sglang = engine_command(replace(split, engine="sglang"), machines, 0.9, LAUNCH, 0)
    assert [option(sglang, name) for name in ("--tp", "--pp-size", "--ep-size")] == ["4", "2", "4"]
    plain = engine_command(Settings("sglang"), machines, 0.9, Launch("/m", "::", 1), 0)
    assert not {"--pp-size", "--ep-size"} & set(plain)


def test_sglang_and_native() -> None:
    one = parse_hardware("h200")
    sglang = engine_command(
        Settings("sglang", draft_depth=2), one, 0.88, Launch("/m", "127.0.0.1", 1), 0
    )
    assert option(sglang, "--speculative-num-draft-tokens") == "3"
    assert option(sglang, "--dtype") == "bfloat16" and "--nnodes" not in sglang
    native = engine_command(
        Settings("native", context=4096), one, 0.9, Launch("/m", "127.0.0.1", 1), 0
    )
    assert native[:2] == ["hy3", "serve"] and option(native, "--max-context") == "4096"


def test_the_native_command_is_one_that_hy3_takes() -> None:
    from typer.testing import CliRunner

    from hy3.cli.app import app

    native = engine_command(
        Settings("native"), parse_hardware("h200"), 0.9, Launch("/none", "127.0.0.1", 0), 0
    )
    found = CliRunner().invoke(app, native[1:])
    # The options pass; what is refused is the folder.
    assert found.exit_code != 0 and "/none" in str(found.exception)


def compose_files() -> dict[str, Any]:
    return {
        name: yaml.safe_load(text)
        for name, text in export_compose(TWO, SPARKS, 0.90, LAUNCH).items()
    }


def test_compose_files_pass_the_published_schema() -> None:
    files = compose_files()
    assert list(files) == ["compose.node0.yaml", "compose.node1.yaml"]
    for rank, value in enumerate(files.values()):
        ComposeSpecification.model_validate(value)
        service = value["services"]["engine"]
        assert service["command"] == engine_command(TWO, SPARKS, 0.90, LAUNCH, rank)
        assert service["restart"] == "no" and service["devices"]
        assert ("healthcheck" in service) == (rank == 0)


def test_a_path_is_taken_literally_by_compose() -> None:
    """Colons end a part of a volume's short form, and a dollar begins a variable."""
    path = '/models/$HOME/a:b "c" 100%'
    launch = Launch(path, "127.0.0.1", 8000)
    text = export_compose(Settings("vllm"), parse_hardware("h200"), 0.9, launch)
    service = yaml.safe_load(text["compose.node0.yaml"])["services"]["engine"]
    bind = service["volumes"][0]
    assert bind["source"] == bind["target"] == path.replace("$", "$$") and bind["read_only"]
    assert service["command"][2] == path.replace("$", "$$")
    assert service["image"].startswith("${HY3_ENGINE_IMAGE:?")


@pytest.mark.parametrize(
    ("key", "value"), [("ulimits", "memlock"), ("image", ["x"]), ("command", {"a": 1})]
)
def test_the_schema_would_catch_a_fault(key: str, value: object) -> None:
    broken = compose_files()["compose.node0.yaml"]
    broken["services"]["engine"][key] = value
    with pytest.raises(ValidationError):
        ComposeSpecification.model_validate(broken)


def test_units_hold_the_command_word_for_word() -> None:
    text = export_systemd(TWO, SPARKS, 0.90, LAUNCH)["hy3-engine.node1.service"]
    line = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    words = [word.replace("%%", "%") for word in shlex.split(line.partition("=")[2])]
    assert words == ["/usr/bin/env", *engine_command(TWO, SPARKS, 0.90, LAUNCH, 1)]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_units_pass_systemd(tmp_path: Path) -> None:
    def complaints(text: str) -> tuple[int, str]:
        path = tmp_path / "hy3-engine.service"
        path.write_text(text)
        command = ["systemd-analyze", "verify", "--man=no", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, "\n".join(
            line for line in done.stderr.splitlines() if "hy3-engine" in line
        )

    units = export_systemd(TWO, SPARKS, 0.90, LAUNCH)
    assert len(units) == 2
    for text in units.values():
        assert complaints(text) == (0, "")
        assert complaints(text.replace("Type=exec", "Type=never"))[1] != ""
