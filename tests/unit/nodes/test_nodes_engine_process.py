"""One table of command lines: what `hy3 copy` and `hy3 doctor` both take for an engine."""

from __future__ import annotations

import pytest

from hy3.doctor.process import engines
from hy3.nodes.engine_process import engines_on, is_engine, leads
from hy3.nodes.node import HERE
from support.planted_host import PlantedHost

SERVERS = (
    "vllm|serve|/m",
    "/opt/bin/vllm|serve|model",
    "/usr/bin/python3|/usr/local/bin/vllm|serve|/m",
    "python3|-m|vllm.entrypoints.openai.api_server",
    "/opt/bin/hy3|serve|/m|--port|0",
    "python3|/opt/bin/hy3|serve|/m",
    "python3|-m|hy3|serve|/m",
    "sglang|serve|--model-path|/m",
    "python3|-m|sglang.launch_server|--model|/m",
    "python3|/src/sglang/launch_server.py",
    "/opt/llama.cpp/llama-server|-m|/m.gguf",
    "llama-server",
    "bash|-c|sleep 1\nexec vllm serve /m",
)
WORKERS = (
    "VLLM::EngineCore",
    "VLLM::Worker_TP0",
    "sglang::scheduler_TP0",
    "ray::RayWorkerProc.execute",
    "ray::IDLE",
    "EngineCore_0",
)
OTHERS = (
    "vim|vllm serve.txt",
    "vllm|bench|serve",
    "hy3|bench|/m",
    "hy3|copy|/m|spark2:/m",
    "python3|/src/hy3/serve.py",
    "vim|/etc/llama-server.conf",
    "/usr/lib/systemd/systemd|--user",
    "/usr/local/lib/python3/ray/core/src/ray/raylet/raylet|--port|1",
)


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> PlantedHost:
    """A machine on which all of them run; an engine's title is its process's name as well."""
    host = PlantedHost(tmp_path_factory.mktemp("host"))
    for pid, line in enumerate((*SERVERS, *WORKERS, *OTHERS), 100):
        host.process(pid, line.rpartition("/")[2].partition("|")[0], "")
        host.file(f"proc/{pid}/cmdline", line.replace("|", "\0") + "\0")
    return host


def test_both_readers_see_every_engine_and_nothing_else(planted) -> None:
    count = len(SERVERS) + len(WORKERS)
    seen = engines(planted.gather().processes)
    assert [each.pid for each in seen] == list(range(100, 100 + count))
    listed = engines_on(HERE, str(planted.root / "proc"))
    wanted = [line.replace("|", " ").splitlines()[-1] for line in (*SERVERS, *WORKERS)]
    assert sorted(listed) == sorted(wanted)


def test_the_doctor_asks_engines_and_no_others_for_what_they_run_with(planted) -> None:
    """A check of limits takes whoever was asked for a running engine."""
    asked = {int(name.split("/")[2]) for name in planted.gather().matching(r"/proc/\d+/limits")}
    assert asked == set(range(100, 100 + len(SERVERS) + len(WORKERS)))


def test_servers_lead_and_workers_do_not() -> None:
    assert [line for line in SERVERS if not leads(line.replace("|", " ").replace("\n", " "))] == []
    assert [line for line in (*WORKERS, *OTHERS[:-1]) if leads(line.replace("|", " "))] == []
    assert leads(OTHERS[-1].replace("|", " ")) and leads("VLLM::APIServer_1")


def test_a_title_cut_at_15_characters() -> None:
    for title in ("VLLM::EngineCore", "sglang::scheduler", "ray::RayWorkerProc"):
        assert is_engine(title[:15])
