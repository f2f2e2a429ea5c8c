"""Signals, a full disk and a failing one: the run ends with its code, and a rerun as ever."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hy3.errors import EnvironmentFault, InputError
from hy3.quantize.dequantize import dequantize
from hy3.quantize.plan import plan_twin
from support.killing import EncodeCount, weights_of
from support.os_calls import Call, watching
from support.quantizing import no_progress, run, tree
from support.scripted import make_random

pytestmark = pytest.mark.usefixtures("pictures_once")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "model"
    return make_random(folder, seed=11, shards=3, num_experts=4)


@pytest.fixture(scope="module")
def long_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough tensors that a signal comes before they are done."""
    folder = tmp_path_factory.mktemp("long") / "model"
    return make_random(folder, seed=12, shards=2, num_experts=160)


@pytest.fixture(scope="module")
def long_expected(long_source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("long_expected") / "out"
    run(long_source, out)
    return tree(out)


def start(source: Path, out: Path, verb: str = "quantize") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hy3", verb, str(source), str(out), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end_by(process: subprocess.Popen[str], out: Path, number: signal.Signals, code: int) -> str:
    """Send it once weights are finished; the run must end in order, and this is what it says."""
    deadline = time.monotonic() + 60
    # Some 80 lines: more than there are copies in a shard.
    while not any(path.stat().st_size > 20_000 for path in out.glob("*.journal")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    error = json.loads(stdout)["error"]
    assert "again" in error["hint"] and "Traceback" not in stderr
    return str(error["message"])


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "interr")]
)
def test_a_signal_ends_the_run_with_its_code(
    long_source: Path,
    long_expected: dict[str, str],
    tmp_path: Path,
    number: signal.Signals,
    code: int,
    word: str,
) -> None:
    out = tmp_path / "out"
    assert word in end_by(start(long_source, out), out, number, code)
    with EncodeCount() as count:
        run(long_source, out)
    assert count.value < weights_of(long_source)
    assert tree(out) == long_expected


def test_a_signal_ends_a_twin_that_goes_on(long_source: Path, tmp_path: Path) -> None:
    quantized, out = tmp_path / "quantized", tmp_path / "twin"
    run(long_source, quantized)
    process = start(quantized, out, "dequantize")
    assert "SIGTERM" in end_by(process, out, signal.SIGTERM, 143)
    plan = plan_twin(quantized)
    dequantize(plan, out, 2, no_progress)
    dequantize(plan, tmp_path / "whole", 2, no_progress)
    assert tree(out) == tree(tmp_path / "whole")


def failing(kind: str, name: str, number: int, at: int = 1) -> Callable[[Call, Any], Any]:
    """A watcher under which the ``at``-th such call fails."""
    seen = 0

    def watch(call: Call, do: Callable[[], Any]) -> Any:
        nonlocal seen
        if call.kind == kind and call.name.startswith(name):
            seen += 1
            if seen == at:
                raise OSError(number, os.strerror(number))
        return do()

    return watch


@pytest.mark.parametrize(
    ("kind", "name", "at"),
    [
        ("write", "model-00002", 9),
        ("write", "model-00002-of-00003.safetensors.journal", 3),
        ("rename", "model-00001", 1),
        ("create", "model-00003", 1),
        ("write", "hy3_resume.json", 2),
        ("write", "config.json", 1),
        ("rename", "hy3_manifest.json", 1),
    ],
)
def test_a_full_disk_anywhere(
    source: Path, expected: dict[str, str], tmp_path: Path, kind: str, name: str, at: int
) -> None:
    """ENOSPC at the border to the system; what was encoded before is not encoded again."""
    out = tmp_path / "out"
    with EncodeCount() as count:
        fault = failing(kind, name, errno.ENOSPC, at)
        with watching(out, fault), pytest.raises(EnvironmentFault, match="No space left") as caught:
            run(source, out, workers=1)
        assert "what is finished is kept" in caught.value.hint
        assert run(source, out, workers=1)
        assert count.value <= weights_of(source) + 1
    assert tree(out) == expected


FULL_DISK = """
import sys
from pathlib import Path
import hy3.quantize.pipeline as pipeline
from hy3.errors import EnvironmentFault
from support.quantizing import run, tree
source, disk = Path(sys.argv[1]), Path(sys.argv[2])
room = disk / "room"
room.write_bytes(bytes(int(sys.argv[3])))
check, pipeline._check_space = pipeline._check_space, lambda *_: None  # it would not begin
try:
    run(source, disk / "out", workers=1)
except EnvironmentFault as error:
    print(error)
room.unlink()
pipeline._check_space = check
run(source, disk / "out", workers=1)
print(tree(disk / "out"))
"""


def test_a_real_full_disk(source: Path, expected: dict[str, str], tmp_path: Path) -> None:
    """A small file system of its own, with room for half of the output until some is made."""
    mount = ["unshare", "--map-root-user", "--mount", "--user"]
    if subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = 'mount -t tmpfs -o size=2m none "$1" && exec "$0" -c "$2" "$3" "$1" "$4"'
    room = 2 * 2**20 - 200_000
    arguments = (sys.executable, str(disk), FULL_DISK, str(source), str(room))
    done = subprocess.run(
        [*mount, "sh", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    error, found = done.stdout.splitlines()
    assert "No space left on device" in error
    assert found == str(expected)


def test_a_flush_that_fails_costs_the_shard(
    source: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    """After a failed fsync the cache may hold what the disk does not: nothing of it is used."""
    out = tmp_path / "out"
    name = "model-00002-of-00003.safetensors.tmp"
    with (
        watching(out, failing("fsync", name, errno.EIO)),
        pytest.raises(EnvironmentFault, match="Input/output error"),
    ):
        run(source, out, workers=1)
    assert not (out / name).exists()
    run(source, out)
    assert tree(out) == expected


@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
def test_a_read_error_in_mid_shard(
    source: Path,
    expected: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    share: float,
) -> None:
    """EIO from preadv from some byte of a shard on; once the disk reads again, the run goes on."""
    out, shard = tmp_path / "out", "model-00002-of-00003.safetensors"
    bad = (source / shard).stat().st_size * share
    real = os.preadv

    def preadv(descriptor: int, buffers: Any, offset: int) -> int:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path == str(source / shard) and offset + buffers[0].nbytes > bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, buffers, offset)

    with EncodeCount() as count:
        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", preadv)
            with pytest.raises(InputError, match="Input/output error") as caught:
                run(source, out, workers=1)
        assert f"{source / shard}: tensor" in caught.value.where and "byte" in caught.value.where
        run(source, out, workers=1)
        assert count.value <= weights_of(source) + 1
    assert tree(out) == expected


def test_a_source_that_is_cut_under_way(source: Path, tmp_path: Path) -> None:
    """A real file that loses its end while it is read: refused, naming it."""
    copy, out = Path(shutil.copytree(source, tmp_path / "source")), tmp_path / "out"
    shard = copy / "model-00003-of-00003.safetensors"

    def cut(call: Call, do: Callable[[], Any]) -> Any:
        if call.kind == "create" and call.name.startswith(shard.name):
            os.truncate(shard, shard.stat().st_size // 2)
        return do()

    with watching(out, cut), pytest.raises(InputError, match=r"shorter|changed") as caught:
        run(copy, out, workers=1)
    assert shard.name in caught.value.where
    assert not (out / shard.name).exists()
