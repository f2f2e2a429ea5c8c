"""Files are opened without waiting, and JSON is read by one strictness, whichever file it is."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hy3.chat.markers import read_marker_suffix
from hy3.checkpoint.file_hash import hash_file
from hy3.checkpoint.header import read_header
from hy3.checkpoint.index import open_checkpoint
from hy3.checkpoint.json_file import read_json_if_there, read_json_object
from hy3.checkpoint.manifest import read_manifest
from hy3.checkpoint.model_config import load_config
from hy3.errors import InputError
from hy3.quantize.resume import read_resume_state

WRONG = [
    (b'{"a": 1, "a": 1}', "has the key 'a' twice"),
    (b'{"k": {"b": [{"c": {"a": 1, "a": 2}}]}}', "has the key 'a' twice in the entry 'k'"),
    (b'[{"a": 1, "a": 2}]', "has the key 'a' twice"),
    (b'{"a": NaN}', "NaN is not JSON"),
    (b'{"a": -Infinity}', "-Infinity is not JSON"),
    (b'{"a": 1e400}', "'1e400' is beyond every double"),
    (b'{"a": ' + b"9" * 5000 + b"}", "too many digits"),
    (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "nested more than 100 levels"),
    (b'{"a": ' + b'{"a":' * 100_000, "nested more than 100 levels"),
    (rb'{"a": "\ud800"}', "half of a surrogate pair"),
    (b"\xef\xbb\xbf{}", "BOM"),
    ('{"a": 1}'.encode("utf-16"), "not valid UTF-8"),
    (b"7", "is a JSON int, not an object"),
]


@pytest.mark.parametrize(("content", "message"), WRONG)
def test_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_json_object(path, hint="mend it")
    assert message in caught.value.message
    assert caught.value.hint == "mend it" and caught.value.where.startswith(f"{path}: byte ")


def test_the_second_key_is_pointed_at(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'{"a": 1, "a": 1}')
    with pytest.raises(InputError, match="twice") as caught:
        read_json_object(path)
    assert caught.value.where == f"{path}: byte 9"


def test_what_is_read_is_written_again(tmp_path: Path) -> None:
    """The right values beside the refused ones: the largest, the deepest, the longest."""
    deep: object = 1
    for _ in range(99):
        deep = [deep]
    value = {"a": 1.7976931348623157e308, "b": 10**4299, "c": deep, "d": "\U0001f600", "e": -0.0}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(value))
    assert read_json_object(path) == value
    assert json.loads(json.dumps(read_json_object(path), indent=2)) == value


def test_no_file_is_none_and_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert read_json_if_there(path) is None
    assert read_json_if_there(tmp_path / "nowhere" / "a.json") is None
    path.symlink_to("elsewhere")
    assert read_json_if_there(path) is None
    (tmp_path / "elsewhere").write_text('{"a": 1}')
    assert read_json_if_there(path) == {"a": 1}


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "header": ("model.safetensors", lambda folder: read_header(folder / "model.safetensors")),
    "hash": ("x", lambda folder: hash_file(folder / "x")),
    "index": ("model.safetensors.index.json", open_checkpoint),
    "config": ("config.json", load_config),
    "tokenizer": ("tokenizer.json", read_marker_suffix),
    "manifest": ("hy3_manifest.json", read_manifest),
    "state": ("hy3_resume.json", read_resume_state),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "loop"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, reader: str, kind: str) -> None:
    name, read = READERS[reader]
    path = tmp_path / name
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to(name)
    with pytest.raises(InputError) as caught:
        read(tmp_path)
    message = "cannot be read (Too many levels" if kind == "loop" else "is not a regular file"
    assert message in caught.value.message
    assert str(path) in caught.value.where and caught.value.hint


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything; for a while this process is someone who may not."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("closed", ["file", "folder"])
def test_without_permission(reader: str, closed: str) -> None:
    name, read = READERS[reader]
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        folder = Path(made) / "model"
        folder.mkdir()
        (folder / name).write_text("{}")
        (folder / name if closed == "file" else folder).chmod(0)
        with as_nobody(), pytest.raises(InputError) as caught:
            read(folder)
        folder.chmod(0o755)
    assert "cannot be read (Permission denied)" in caught.value.message
    assert str(folder / name) in caught.value.where and "permissions" in caught.value.hint


@pytest.mark.parametrize("core", ["", "1"])
def test_a_hundred_levels_are_read_and_one_more_is_not(tmp_path: Path, core: str) -> None:
    path = tmp_path / "a.json"
    for levels, fits in ((99, True), (100, False)):
        path.write_text('{"a": ' + "[" * levels + core + "]" * levels + "}")
        if fits:
            assert read_json_object(path).keys() == {"a"}
        else:
            with pytest.raises(InputError, match="nested more than 100 levels"):
                read_json_object(path)
