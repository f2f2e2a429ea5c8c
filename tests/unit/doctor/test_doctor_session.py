"""Logins that take semaphores with them, images without Ray, engines that may not ask the hub."""

from __future__ import annotations

import pytest

from hy3.doctor.checks import session
from support.planted_host import PlantedHost

CHECKS = {check.id: check for check in session.CHECKS}
NGC = "nvcr.io/nvidia/vllm:26.04-py3"


@pytest.fixture
def planted(tmp_path):
    host = PlantedHost(tmp_path)
    (host.root / "run/systemd/system").mkdir(parents=True)
    host.program("docker", "[ $1 = images ] && echo 'vllm/vllm-openai:v0.26.0 sha256:aa'")
    host.engine()
    return host


def verdict(planted: PlantedHost, identity: str, nodes: int = 2) -> str:
    return CHECKS[identity].run(planted.gather(nodes)).verdict


@pytest.mark.parametrize("identity", CHECKS)
def test_clean(planted, identity):
    planted.file("var/lib/systemd/linger/ubuntu", "")
    planted.program("docker", "[ $1 != images ] || echo 'vllm/vllm-openai:v0.26.0 sha256:aa'")
    assert verdict(planted, identity) == "CLEAN"


@pytest.mark.parametrize("identity", ["image-without-ray", "offline-without-files"])
def test_nothing_to_see(tmp_path, identity):
    assert verdict(PlantedHost(tmp_path), identity) == "NOT CHECKED"


def test_semaphores(planted):
    identity = "ipc-removed-at-logout"
    assert verdict(planted, identity, nodes=1) == "NOT CHECKED"
    assert verdict(planted, identity) == "PROBLEM"
    assert CHECKS[identity].run(planted.gather(2)).fix.shown() == [
        "sudo loginctl enable-linger ubuntu"
    ]
    planted.file("etc/systemd/logind.conf", "[Login]\n#RemoveIPC=no\n")
    planted.file("var/lib/systemd/linger/another", "")
    assert verdict(planted, identity) == "PROBLEM"
    planted.file("etc/systemd/logind.conf.d/10-ipc.conf", "[Login]\nRemoveIPC=no\n")
    assert verdict(planted, identity) == "CLEAN"
    planted.file("etc/systemd/logind.conf.d/20-ipc.conf", "[Login]\nRemoveIPC=yes\n")
    assert verdict(planted, identity) == "PROBLEM"
    planted.program("id", "echo root")
    assert verdict(planted, identity) == "CLEAN"


DOCKER = f"""case "$1" in
images) echo '{NGC} sha256:bb' ;;
ps) echo 0123 ;;
inspect) printf '/a\\t{NGC}\\tsha256:bb\\t%s\\n' 'COMMAND' ;;
esac"""


def test_images_without_ray(planted):
    planted.program("docker", DOCKER.replace("COMMAND", "vllm serve /m --headless"))
    assert verdict(planted, "image-without-ray") == "INCONCLUSIVE"
    planted.program("docker", DOCKER.replace("COMMAND", "sh -c ray start --head"))
    assert verdict(planted, "image-without-ray") == "PROBLEM"
    planted.program("docker", "echo 'Cannot connect to the Docker daemon'; exit 1")
    assert verdict(planted, "image-without-ray") == "INCONCLUSIVE"


def test_offline(planted, monkeypatch):
    identity = "offline-without-files"
    command = "vllm serve tencent/Hy3 --port 8000"
    planted.process(100, "vllm", command, environ="HF_HUB_OFFLINE=1")
    assert verdict(planted, identity) == "INCONCLUSIVE"
    monkeypatch.setenv("HOME", "/home/u")
    cache = planted.root / "home/u/.cache/huggingface/hub/models--tencent--Hy3"
    cache.mkdir(parents=True)
    assert verdict(planted, identity) == "CLEAN"
    planted.process(100, "vllm", command, environ="HF_HUB_OFFLINE=0")
    cache.rmdir()
    assert verdict(planted, identity) == "CLEAN"
    planted.file("etc/environment", 'HF_HUB_OFFLINE="1"\n')
    assert verdict(planted, identity) == "INCONCLUSIVE"
