"""What is read of a machine: here, through ssh, denied, cut off; and what never leaves it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from hy3.doctor.check import CannotTell
from hy3.doctor.host import Host, Record, gather_here, gather_remote
from hy3.errors import EnvironmentFault
from hy3.nodes.node import Node
from support.planted_host import PlantedHost

SCRIPT = resources.files("hy3.doctor").joinpath("gather.sh").read_text()


@pytest.fixture
def planted(tmp_path):
    return PlantedHost(tmp_path / "a machine")


def stand_in_ssh(folder: Path, monkeypatch, body: str) -> Path:
    """An ``ssh`` that writes down its arguments, then does ``body``."""
    program = folder / "ssh"
    seen = folder / "seen"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {seen}\n{body}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return seen


def test_the_machine_itself_can_be_read():
    host = gather_here()
    assert host.meminfo["MemTotal"] > 0
    assert host.processes[os.getpid()].parent == os.getppid()


def test_it_writes_nothing(planted):
    before = {path: path.stat().st_mtime_ns for path in planted.root.rglob("*")}
    planted.gather()
    assert {path: path.stat().st_mtime_ns for path in planted.root.rglob("*")} == before
    redirections = re.findall(r"(?<![0-9&])>>?\s*(?!&)(\S+)", re.sub(r"#.*", "", SCRIPT))
    assert set(redirections) <= {"/dev/null"}


def test_keys_stay_where_they_are(planted):
    planted.file("etc/netplan/50-wifi.yaml", "wlan0:\n  password: hunter2\n  mtu: 9000\n")
    planted.engine(environ="HF_TOKEN=hf_1\0NCCL_NET=IB\0API_KEY=sk-9\0")
    planted.process(100, "vllm", "vllm serve /m --api-key sk-9 --tokenizer /t --hf-token=hf_1")
    host = planted.gather()
    everything = "".join(record.text for record in host.records.values())
    assert not [secret for secret in ("hunter2", "sk-9", "hf_1") if secret in everything]
    assert "mtu: 9000" in host.need("/etc/netplan/50-wifi.yaml")
    assert "--tokenizer /t" in host.processes[100].command
    assert host.lines("environment 101") == ["NCCL_NET=IB"]


def test_through_ssh_in_one_connection(planted, tmp_path, monkeypatch):
    body = f"sed \"s|^R=.*|R='{planted.root}'|\" | sh -s"
    seen = stand_in_ssh(tmp_path, monkeypatch, body)
    here, there = planted.gather(2), gather_remote(Node("spark2"), 2)
    assert there.records == here.records and there.node.address == there.name == "spark2"
    assert seen.read_text().split() == [
        *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5"),
        *("--", "spark2", "sh", "-s"),
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo 'Permission denied (publickey).' >&2; exit 255", "Permission denied"),
        ("head -c 100 >/dev/null; printf 'user\\tok\\t'", "cut off"),
        ("cat >/dev/null; printf 'user\\tok\\n!\\nend\\n'", "garbled"),
    ],
)
def test_a_node_that_cannot_be_read(tmp_path, monkeypatch, body, reason):
    stand_in_ssh(tmp_path, monkeypatch, body)
    with pytest.raises(EnvironmentFault, match=reason) as caught:
        gather_remote(Node("spark2"))
    assert caught.value.where == "spark2"


def test_without_programs_nothing_seems_absent(tmp_path, monkeypatch):
    """A node whose shell has no grep must not pass for one without engines."""
    (tmp_path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="no base64 on PATH"):
        gather_here()


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9])
def test_half_a_script_does_nothing(cut):
    part = SCRIPT[: int(len(SCRIPT) * cut)]
    done = subprocess.run(["sh", "-s"], input=part, capture_output=True, text=True)
    assert done.stdout == ""


def test_what_is_absent_denied_or_failed():
    host = Host("x", {"a": Record("denied", ""), "b": Record("failed", "one\nno daemon\n")})
    assert host.get("c") is None and host.lines("c") == []
    for name, expected in (("a", "INCONCLUSIVE"), ("b", "INCONCLUSIVE"), ("c", "NOT CHECKED")):
        with pytest.raises(CannotTell) as caught:
            host.need(name)
        assert caught.value.finding.verdict == expected


def test_a_file_that_may_not_be_read(planted):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    planted.file("etc/netplan/90.yaml", "x").chmod(0)
    assert planted.gather().records["/etc/netplan/90.yaml"].status == "denied"


def test_the_script_is_posix():
    shell = "dash" if sys.platform == "linux" else "sh"
    assert subprocess.run([shell, "-n"], input=SCRIPT, text=True).returncode == 0
