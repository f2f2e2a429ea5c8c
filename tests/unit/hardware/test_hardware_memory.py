"""Available memory from the files that Linux keeps, in every combination that occurs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hy3.hardware.memory import available_bytes

MEMINFO = "MemTotal:  8000 kB\nMemFree: 100 kB\nMemAvailable:    4000 kB\n"


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_max", ".max").replace("_now", ".current")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_a_limit_it_is_what_the_kernel_says(tmp_path: Path) -> None:
    assert available_bytes(write(tmp_path, proc__meminfo=MEMINFO)) == 4000 * 1024


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [
        ("max", "100", 4000 * 1024),
        ("3000000", "1000000", 2000000),
        ("1000", "2000", 0),
        ("99999999999", "0", 4000 * 1024),
    ],
)
def test_a_container_of_cgroup_v2(tmp_path: Path, limit: str, used: str, expected: int) -> None:
    root = write(tmp_path, proc__meminfo=MEMINFO)
    write(root / "sys/fs/cgroup", memory_max=limit + "\n", memory_now=used + "\n")
    assert available_bytes(root) == expected


def test_a_container_of_cgroup_v1(tmp_path: Path) -> None:
    root = write(tmp_path, proc__meminfo=MEMINFO)
    folder = root / "sys/fs/cgroup/memory"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("2048000")
    (folder / "memory.usage_in_bytes").write_text("48000")
    assert available_bytes(root) == 2000000


def test_without_meminfo_it_is_half_of_what_is_installed(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) > 2**27
