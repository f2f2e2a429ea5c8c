"""``hy3 doctor``: exit code, JSON, and ``--fix``, which shows, asks, and only then runs."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys

import pytest

from hy3.cli.app import app
from hy3.doctor import host as host_module
from hy3.doctor import survey
from hy3.doctor.host import gather_here
from support.planted_host import GB10, PlantedHost
from support.tiny import TINY

SCRIPT = """
import sys
from pathlib import Path
from hy3.doctor import host, survey
root = Path(sys.argv[1])
survey.gather_here = lambda nodes=1: host.gather_here(root, nodes)
sys.argv = ["hy3", "doctor", *sys.argv[2:]]
from hy3.cli.app import main
main()
"""


@pytest.fixture
def planted(tmp_path):
    return PlantedHost(tmp_path / "machine")


def doctor(planted, *arguments, **options):
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(planted.root), *arguments],
        capture_output=True,
        text=True,
        **options,
    )


def test_a_clean_machine_ends_with_0(planted):
    done = doctor(planted, "--json")
    result = json.loads(done.stdout)
    assert (done.returncode, result["schema"], result["ok"]) == (0, "hy3.doctor/1", True)
    assert {"id", "verdict", "severity", "evidence", "fix", "source"} <= result["checks"][0].keys()


def test_what_was_not_looked_at_is_short(planted):
    """A line for each option that would ask, one for the rest, and every check in --json."""
    done = doctor(planted, "--model", str(TINY))
    checks = json.loads(doctor(planted, "--model", str(TINY), "--json").stdout)["checks"]
    unasked = [each for each in checks if each["verdict"] == "NOT CHECKED"]
    lines = [line for line in done.stdout.splitlines() if line.startswith("NOT CHECKED, ")]
    options = [line for line in lines if "nothing to look at" not in line]
    assert len(lines) - len(options) == 1
    for option in ("--gpu-load", "--dry-load", "--engine"):
        (line,) = [line for line in options if f"{option} " in line]
        names = [each["id"] for each in unasked if f"{option} " in each["evidence"]]
        assert names and f", {len(names)}: {', '.join(names)})" in line
    (rest,) = set(lines) - set(options)
    for reason in {each["evidence"] for each in unasked if "--" not in each["evidence"]}:
        assert reason in rest
    assert f"{len(unasked)} NOT CHECKED" in done.stdout.splitlines()[-1]


def test_a_problem_ends_with_1_and_says_what_to_do(planted):
    planted.memory(SwapTotal=8_000_000, SwapFree=8_000_000)
    done = doctor(planted)
    assert done.returncode == 1
    assert "swap-under-engine (here, stops)" in done.stdout
    assert "1 PROBLEM" in done.stdout and "sudo sh -c" in done.stdout


def plant_orphan(planted) -> subprocess.Popen:
    """A process of ours that passes for what a dead engine left."""
    child = subprocess.Popen(["sleep", "60"])
    planted.process(child.pid, "VLLM::EngineCore", "VLLM::EngineCore")
    return child


def test_fix_without_a_terminal_only_shows(planted):
    child = plant_orphan(planted)
    try:
        done = doctor(planted, "--fix", "engine-left-behind", stdin=subprocess.DEVNULL)
        assert done.returncode == 1
        assert f"kill {child.pid}" in done.stderr and "nothing was run" in done.stderr
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(("typed", "runs"), [("n\n", False), ("\n", False), ("y\n", True)])
def test_fix_asks_at_a_terminal(planted, typed, runs):
    child = plant_orphan(planted)
    ours, theirs = pty.openpty()
    try:
        os.write(ours, typed.encode())
        done = doctor(planted, "--fix", "engine-left-behind", stdin=theirs)
        assert "run these? [y/N]" in done.stderr
        if runs:
            assert child.wait(timeout=10) == -15
        else:
            assert child.poll() is None
    finally:
        child.kill()
        child.wait()
        os.close(ours)
        os.close(theirs)


def test_fix_with_yes_asks_nothing(planted):
    child = plant_orphan(planted)
    doctor(planted, "--fix", "engine-left-behind", "--yes", stdin=subprocess.DEVNULL)
    assert child.wait(timeout=10) == -15


def test_fix_of_what_is_no_check_or_no_problem(planted):
    done = doctor(planted, "--fix", "nothing")
    assert done.returncode == 2 and "earlyoom-prefers-engine" in done.stderr
    done = doctor(planted, "--fix", "swap-under-engine", "--yes")
    assert done.returncode == 0 and "nothing to fix" in done.stderr


def test_an_unreachable_node_is_a_problem_and_the_other_is_still_examined(
    planted, tmp_path, monkeypatch
):
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\necho 'No route to host' >&2\nexit 255\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    done = doctor(planted, "--nodes", "localhost,spark2", "--json")
    checks = json.loads(done.stdout)["checks"]
    lost = [each for each in checks if each["where"] == "spark2"]
    assert done.returncode == 1
    assert [(each["id"], each["verdict"]) for each in lost] == [("node-unreachable", "PROBLEM")]
    assert len(checks) > len(lost) + 5


FAULTS = {
    "earlyoom-prefers-engine": lambda p: p.process(7, "earlyoom", "earlyoom --prefer vllm"),
    "cache-counts-as-used": lambda p: p.memory(MemFree=3_000_000),
    "engine-left-behind": lambda p: p.process(99999, "VLLM::EngineCore", "VLLM::EngineCore"),
    "swap-under-engine": lambda p: p.memory(SwapTotal=8_000_000, SwapFree=8_000_000),
    "copy-while-serving": lambda p: (p.engine(), p.process(99999, "rsync", "rsync -a /m b:/m")),
    "clocks-held-down": lambda p: p.program("nvidia-smi", f"echo '{GB10[:-2]}40'"),
    "rdma-devices-missing": lambda p: (p.fabric(), shutil.rmtree(p.root / "dev/infiniband")),
}


@pytest.mark.parametrize("identity", FAULTS)
@pytest.mark.parametrize("typed", ["", "n\n"])
def test_every_fix_shows_asks_and_does_nothing_on_no(planted, identity, typed, monkeypatch, capfd):
    FAULTS[identity](planted)
    ran: list[object] = []
    monkeypatch.setattr(survey, "gather_here", lambda nodes=1: gather_here(planted.root, nodes))
    monkeypatch.setattr(subprocess, "run", recorded(subprocess.run, ran))
    ours, theirs = pty.openpty()
    os.write(ours, typed.encode() or b"\x04")  # end of file, as a terminal types it
    with open(theirs, closefd=True) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        code = app(["doctor", "--fix", identity], standalone_mode=False)
    os.close(ours)
    shown = capfd.readouterr().err
    assert code == 1 and "run these? [y/N]" in shown
    assert ("sudo " in shown) or ("kill 99999" in shown)
    assert [command for command in ran if command[0] in ("sudo", "kill")] == []


def recorded(run, seen: list[object]):
    """``subprocess.run`` that remembers what it ran, and runs no fix."""

    def wrapper(command, *arguments, **options):
        seen.append(command)
        assert command[0] not in ("sudo", "kill"), command
        return run(command, *arguments, **options)

    return wrapper


def test_a_folder_without_a_checkpoint(planted, tmp_path):
    done = doctor(planted, "--model", str(tmp_path))
    assert done.returncode == 2 and "holds no config.json" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--fabric", "10.0.0.1,10.0.0.2"], "2 addresses are given for 0 nodes"),
        (["--engine-python", "docker 'run"], "--engine-python: cannot be read as a command"),
        (["--engine-python", ""], "--engine-python: is empty"),
        (["--dry-load"], "--dry-load: what an engine must be able to do"),
    ],
)
def test_options_that_make_no_sense(planted, options, words):
    done = doctor(planted, *options)
    assert done.returncode == 2 and words in done.stderr


def test_what_is_tried_out_is_asked_for(planted):
    planted.fabric()
    done = doctor(planted, "--json", "--gpu-load", "1", "--engine-python", "sh -c 'cat; exit 7' x")
    found = {each["id"]: each for each in json.loads(done.stdout)["checks"]}
    assert "--watch 300" in found["fabric-drifts"]["evidence"]
    assert found["clocks-under-load"]["verdict"] == "INCONCLUSIVE"
    assert "the load did not run (here: sh fails there" in found["clocks-under-load"]["evidence"]


def test_gather_is_what_the_stand_in_replaces():
    assert survey.gather_here is host_module.gather_here


def test_a_checkpoint_and_its_engine(planted, tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    for path in TINY.iterdir():
        (folder / path.name).symlink_to(path)
    done = doctor(planted, "--model", str(folder), "--engine", "vllm==0.33.0", "--json")
    verdicts = {each["id"]: each["verdict"] for each in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0 and verdicts["token-suffix"] == "CLEAN"
    text = (folder / "tokenizer_config.json").read_text()
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").write_text(text.replace('"token_suffix"', '"was"'))
    done = doctor(planted, "--model", str(folder), "--fix", "token-suffix")
    assert done.returncode == 1 and f"hy3 repair {folder}" in done.stderr


def test_an_engine_without_a_checkpoint(planted):
    assert doctor(planted, "--engine", "vllm==0.33.0").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["--nodes", ""], "--nodes"),
        (["--model", "", "--engine", "vllm==0.33.0"], ""),
        (["--model", TINY, "--engine", ""], "--engine"),
        (["--yes"], "--yes"),
        (["--watch", "inf"], "--watch"),
        (["--gpu-load", "inf"], "--gpu-load"),
    ],
)
def test_what_is_given_is_never_taken_for_nothing(arguments, where):
    done = subprocess.run(
        [sys.executable, "-m", "hy3", "doctor", *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and where in done.stderr.splitlines()[0]
    assert done.stderr.splitlines()[1].startswith("hint: ")
