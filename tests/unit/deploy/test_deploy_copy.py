"""What is sent, in which shares, and which processes count as an engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hy3.checkpoint.file_hash import FileHash, hash_file
from hy3.checkpoint.manifest import MANIFEST_NAME, Manifest
from hy3.deploy.copy import files_to_send, share_out
from hy3.deploy.serving import engines_among, serving_here
from hy3.errors import CheckFailed, InputError
from support.recipes import PARAMETERS


@given(sizes=st.lists(st.integers(0, 10**9), max_size=30), streams=st.integers(1, 8))
def test_shares_hold_every_file_once(sizes: list[int], streams: int) -> None:
    files = {f"f{index}": FileHash("0" * 64, size) for index, size in enumerate(sizes)}
    files[MANIFEST_NAME] = FileHash("0" * 64, 10)
    shares = share_out(files, streams)
    assert sorted(name for share in shares for name in share) == sorted(files)
    assert len(shares) <= streams
    loads = [sum(files[name].size_bytes for name in share) for share in shares]
    assert max(loads) - min(loads) <= max([*sizes, 10]) + 10 or len(shares) < streams


def test_only_a_finished_folder_is_sent(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no hy3_manifest"):
        files_to_send(tmp_path)
    (tmp_path / "a").write_bytes(b"12")
    outputs = {"a": hash_file(tmp_path / "a")}
    manifest = Manifest(PARAMETERS, {}, outputs)
    (tmp_path / MANIFEST_NAME).write_bytes(manifest.encode())
    assert list(files_to_send(tmp_path)) == ["a", MANIFEST_NAME]
    (tmp_path / "a").write_bytes(b"123")
    with pytest.raises(CheckFailed, match="another size"):
        files_to_send(tmp_path)


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("/opt/bin/vllm\0serve\0model", True),
        ("hy3\0serve\0model\0", True),
        ("python3\0-m\0sglang.launch_server\0--model", True),
        ("VLLM::EngineCore", True),
        ("python3\0-m\0vllm.entrypoints.openai.api_server", True),
        ("vim\0vllm serve.txt", False),
        ("hy3\0bench\0", False),
        ("", False),
    ],
)
def test_engines_among_processes(line: str, engine: bool) -> None:
    assert bool(engines_among([line])) == engine


def test_processes_here_are_read_from_proc(tmp_path: Path) -> None:
    for pid, line in (("12", b"vllm\0serve\0/m\0"), ("13", b"bash\0"), ("self", b"vllm\0serve\0")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(line)
    assert serving_here(tmp_path) == ["vllm serve /m"]
