"""What takes an engine's memory away, or the engine itself: earlyoom, swap, caches, leftovers."""

from __future__ import annotations

import re
import shlex

from hy3.doctor.check import Check, Finding, clean, inconclusive, not_checked, problem
from hy3.doctor.engine_matrix import Engine, feature
from hy3.doctor.host import Host
from hy3.doctor.process import engines, has_leader
from hy3.doctor.software import is_unified, package_versions
from hy3.hardware.device import GIB, load_devices

# As the kernel and the engines name the processes that must live.
_ENGINE_NAMES = ("VLLM::EngineCore", "VLLM::Worker_TP0", "vllm", "ray::RayWorkerProc", "python3")
_SGLANG_NAMES = ("sglang::scheduler", "raylet", "python")
_CACHE_MARGIN_BYTES = 2 * GIB
_FREE_MARGIN_BYTES = 4 * GIB
_SWAPPINESS = r"\s*vm\.swappiness\s*=\s*(\d+)"


def earlyoom_prefers_engine(host: Host) -> Finding:
    """The pattern after --prefer, tried on the names that engines have."""
    running = [each for each in host.processes.values() if each.name == "earlyoom"]
    configured = host.get("/etc/default/earlyoom")
    if not running:
        if configured is None:
            return clean("earlyoom is not installed")
        return clean("earlyoom is configured, and not running")
    pattern = _after_prefer(running[0].command) or _after_prefer(configured or "")
    if pattern is None:
        return clean("earlyoom is running without --prefer")
    try:
        victims = [n for n in (*_ENGINE_NAMES, *_SGLANG_NAMES) if re.search(pattern, n)]
    except re.error:
        return inconclusive(f"earlyoom prefers {pattern!r}, which cannot be read as a pattern here")
    if not victims:
        return clean(f"earlyoom prefers {pattern!r}, which is no engine")
    return problem(
        f"earlyoom ends {', '.join(victims[:3])} first (--prefer {pattern!r})",
        "stop it while models are served, or name the engine after --avoid instead",
        ("sudo", "systemctl", "disable", "--now", "earlyoom"),
    )


def _after_prefer(text: str) -> str | None:
    """From a command line, or from EARLYOOM_ARGS of the configuration."""
    for line in reversed(text.splitlines()):
        found = re.search(r"--prefer[ =]+(.+)", line.strip().rstrip('"'))
        if found and not line.lstrip().startswith("#"):
            rest = found[1]
            quoted = re.match(r"(['\"])(.*?)\1", rest)
            return quoted[2] if quoted else rest.split()[0]
    return None


def cache_counts_as_used(host: Host) -> Finding:
    """Page cache beside free memory, for engines that ask CUDA what is free."""
    if not is_unified(host):
        return not_checked("no device here shares the machine's memory")
    memory = host.meminfo
    cache = memory["MemAvailable"] - memory["MemFree"]
    evidence = f"{cache / GIB:.1f} GiB of what is available is page cache"
    if cache <= _CACHE_MARGIN_BYTES:
        return clean(evidence)
    found = package_versions(host, "vllm")
    known = feature("counts-cache-as-free")
    if found and all(known.known(Engine("vllm", version)) for version in found.values()):
        return clean(f"{evidence}; vLLM {', '.join(sorted(set(found.values())))} counts it as free")
    first = known.first("vllm")
    return problem(
        f"{evidence}, and older vLLM takes it for used",
        f"drop the cache on every node before every start, or take vLLM {first} or newer",
        ("sudo", "sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches"),
    )


def less_free_than_usual(host: Host) -> Finding:
    """Available memory beside what others have on the same device with nothing running."""
    if not is_unified(host):
        return not_checked("no device here shares the machine's memory")
    available, usual = host.meminfo["MemAvailable"], load_devices()["gb10"].free_bytes
    evidence = f"{available / GIB:.1f} GiB available, {usual / GIB:.1f} GiB are usual at boot"
    if available >= usual - _FREE_MARGIN_BYTES:
        return clean(evidence)
    if engines(host.processes):
        return inconclusive(f"{evidence}; an engine is running")
    return problem(
        evidence,
        "plan with what is there (hy3 plan --free-gib); some pairs of kernel and driver hold "
        "9 GiB more than others, a reboot returns what a crash left behind",
    )


def engine_left_behind(host: Host) -> Finding:
    """Processes of an engine, and whether anything is left that would end them."""
    found = engines(host.processes)
    if not found:
        return clean("no process of an engine is running")
    orphans = [each for each in found if not has_leader(each, host.processes)]
    if not orphans:
        held = sum(each.resident_bytes for each in found) / GIB
        return inconclusive(
            f"an engine is running: {len(found)} processes, {held:.1f} GiB of resident memory",
            "stop it on every node before another is started",
        )
    return problem(
        f"nothing leads {', '.join(each.shown for each in orphans[:3])}",
        "end what a stopped engine left, on every node, and wait until the memory is back",
        ("kill", *(str(each.pid) for each in orphans)),
    )


def swap_under_engine(host: Host) -> Finding:
    """Swap on unified memory: in use, likely to be, or kept off for this boot only."""
    if not is_unified(host):
        return not_checked("no device here shares the machine's memory")
    memory = host.meminfo
    total, used = memory["SwapTotal"], memory["SwapTotal"] - memory["SwapFree"]
    if total == 0:
        return clean("no swap")
    now = int(host.need("/proc/sys/vm/swappiness"))
    swapped = [each for each in engines(host.processes) if each.swapped_bytes > 0]
    persist = "echo 'vm.swappiness = 1' > /etc/sysctl.d/99-hy3.conf && sysctl -w vm.swappiness=1"
    evidence = f"swappiness {now}, {used / GIB:.1f} of {total / GIB:.1f} GiB swap in use"
    fix = "keep swap for emergencies: vm.swappiness = 1, also after a reboot"
    if swapped:
        evidence = f"{evidence}, part of it by {swapped[0].shown}"
    elif now <= 1:
        if now == _persistent_swappiness(host):
            return clean(evidence)
        evidence = f"{evidence}; nothing in /etc/sysctl.d keeps it so after a reboot"
    return problem(evidence, fix, ("sudo", "sh", "-c", persist))


def _persistent_swappiness(host: Host) -> int | None:
    """The last setting wins; /etc/sysctl.conf is read after the folder."""
    value = None
    names = sorted(host.matching(r"/etc/sysctl\.d/.*\.conf"))
    for name in [*names, "/etc/sysctl.conf"]:
        for line in host.lines(name):
            found = re.match(_SWAPPINESS, line)
            value = int(found[1]) if found else value
    return value


def copy_while_serving(host: Host) -> Finding:
    """Bulk copies beside an engine: their page cache eats its margin."""
    copies = [each for each in host.processes.values() if each.copies]
    if not copies:
        return clean("no rsync, scp or download is running")
    if not is_unified(host):
        return not_checked("a copy is running, but no device here shares the machine's memory")
    shown = shlex.join(copies[0].command.split()[:2])
    if not engines(host.processes):
        return inconclusive(f"{shown} is running: wait for its end before an engine is started")
    return problem(
        f"{shown} (pid {copies[0].pid}) is running beside an engine",
        "stop the copy, and go on with it when no model is served",
        ("kill", *(str(each.pid) for each in copies)),
    )


_SPARK = "https://github.com/tonyd2wild/Hy3-295B-NVFP4-MTP-2x-DGX-Spark"
CHECKS = (
    Check(
        "earlyoom-prefers-engine",
        "stops",
        "earlyoom picks the engine first when memory runs low",
        "https://github.com/MiaAI-Lab/Hy3-Dual-DGX-Spark",
        earlyoom_prefers_engine,
    ),
    Check(
        "cache-counts-as-used",
        "stops",
        "page cache is taken for used memory, so a second start fails",
        "https://github.com/vllm-project/vllm/issues/48140",
        cache_counts_as_used,
    ),
    Check(
        "less-free-than-usual",
        "stops",
        "less memory is free than on others of its kind",
        "https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47",
        less_free_than_usual,
    ),
    Check(
        "engine-left-behind",
        "stops",
        "workers of a stopped engine still hold their memory",
        _SPARK,
        engine_left_behind,
    ),
    Check(
        "swap-under-engine",
        "stops",
        "the kernel swaps the engine out while it loads",
        "https://github.com/tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark",
        swap_under_engine,
    ),
    Check(
        "copy-while-serving",
        "stops",
        "a copy or download fills the page cache beside an engine",
        "https://github.com/Blackwellboy/model-serving-minefield",
        copy_while_serving,
    ),
)
