"""What is sent, and in which shares."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hy3.checkpoint.file_hash import FileHash, hash_file
from hy3.checkpoint.manifest import MANIFEST_NAME, Manifest
from hy3.deploy.copy import files_to_send, share_out
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
