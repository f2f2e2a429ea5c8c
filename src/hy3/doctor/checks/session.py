"""What ends an engine from outside, or starts it without what it needs: logins, images, caches."""

from __future__ import annotations

import re

from hy3.doctor.check import Check, Finding, clean, inconclusive, not_checked, problem
from hy3.doctor.host import Host
from hy3.doctor.ports import engine_environments
from hy3.doctor.process import engines

_HUB_NAME = re.compile(r"(?<![\w/.:-])([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?![\w/-])")
_NVIDIA_IMAGE = re.compile(r"nvcr\.io/nvidia/vllm:(\d\d\.\d\d)")
_FIRST_WITHOUT_RAY = "26.04"


def ipc_removed_at_logout(host: Host) -> Finding:
    """logind's RemoveIPC, lingering, and who one is."""
    if host.nodes == 1:
        return not_checked("one machine: no worker is started through ssh")
    if not host.lines("systemd"):
        return clean("no systemd: nothing removes semaphores at logout")
    user = host.need("user").strip()
    if user == "root":
        return clean("system users keep their semaphores")
    if any(path.rpartition("/")[2] == user for path in host.lines("linger")):
        return clean(f"{user} lingers: its semaphores stay")
    if _remove_ipc(host) == "no":
        return clean("logind has RemoveIPC=no")
    return problem(
        f"RemoveIPC is on and {user} does not linger",
        "let the user linger, or start workers in containers or by systemd",
        ("sudo", "loginctl", "enable-linger", user),
    )


def _remove_ipc(host: Host) -> str:
    """The last setting wins; drop-ins are read after the file itself."""
    value = "yes"
    drop_ins = sorted(host.matching(r"/etc/systemd/logind\.conf\.d/.*\.conf"))
    for name in ["/etc/systemd/logind.conf", *drop_ins]:
        for line in host.lines(name):
            found = re.match(r"\s*RemoveIPC\s*=\s*(\w+)", line)
            value = found[1].lower() if found else value
    return "no" if value in ("no", "false", "off", "0") else "yes"


def image_without_ray(host: Host) -> Finding:
    """NVIDIA's images of vLLM from the first that has no Ray."""
    images = host.lines("images")
    if host.get("images") is None:
        return not_checked("no docker here")
    bare = [
        line.split()[0]
        for line in images
        if (found := _NVIDIA_IMAGE.match(line)) and found[1] >= _FIRST_WITHOUT_RAY
    ]
    if not bare:
        return clean("no image here is one of NVIDIA's without Ray")
    started = [line for line in host.lines("containers") if re.search(r"\bray start\b", line)]
    if any(image in line for line in started for image in bare):
        return problem(
            f"{bare[0]} has no Ray, and a container of it runs `ray start`",
            "start the ranks without Ray (hy3 plan --export), or add Ray in a layer of your own",
        )
    return inconclusive(f"{bare[0]} has no Ray: start its ranks without")


def offline_without_files(host: Host) -> Finding:
    """Names of a hub on an engine's command line, when it may not ask the hub."""
    found = engines(host.processes)
    offline = {
        pid
        for pid, told in engine_environments(host).items()
        if told.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on")
    }
    everywhere = any(re.search(r"=[\"']?(1|true|yes|on)", line) for line in host.lines("offline"))
    if not found:
        if everywhere:
            return inconclusive("/etc/environment forbids asking the hub; no engine is running")
        return not_checked("no engine is running")
    cached = {path.rpartition("/models--")[2].replace("--", "/") for path in host.lines("hub")}
    for process in found:
        if process.pid not in offline and not everywhere:
            continue
        for name in _HUB_NAME.findall(process.command):
            if name not in cached:
                return inconclusive(
                    f"pid {process.pid} is offline and names {name}, which is not in this user's "
                    "cache",
                    f"fetch it where the engine looks: hf download {name}",
                )
    return clean("engines may ask the hub, or name only what is cached")


CHECKS = (
    Check(
        "ipc-removed-at-logout",
        "stops",
        "a worker dies when the ssh session that started it closes",
        "https://github.com/eugr/spark-vllm-docker/issues/352",
        ipc_removed_at_logout,
    ),
    Check(
        "image-without-ray",
        "stops",
        "the image has no Ray, and the launch wants it",
        "https://github.com/mark-ramsey-ri/vllm-dgx-spark",
        image_without_ray,
    ),
    Check(
        "offline-without-files",
        "stops",
        "an engine that may not ask the hub lacks a model, such as its draft",
        "https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables",
        offline_without_files,
    ),
)
