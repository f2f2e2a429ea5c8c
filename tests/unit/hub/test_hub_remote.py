"""Remote headers: the same checkpoint as the folder, from a few small ranges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hy3.checkpoint.header import TensorSpec, encode_header
from hy3.checkpoint.index import open_checkpoint
from hy3.errors import EnvironmentFault, InputError
from hy3.hub import faults
from hy3.hub.checkpoint import read_remote_checkpoint
from hy3.hub.headers import FIRST_REQUEST_BYTES
from hy3.hub.name import HubName, parse_hub_name
from hy3.hub.repository import open_repository
from support.hub_server import REPOSITORY, Fault, serve_hub
from support.tiny import TINY

NAME = HubName(REPOSITORY)
FIRST = "model-00001-of-00002.safetensors"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "FIRST_PAUSE_S", 0.01)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf://tencent/Hy3", HubName("tencent/Hy3")),
        ("hf://tencent/Hy3@refs/pr/1", HubName("tencent/Hy3", "refs/pr/1")),
        ("tencent/Hy3@v1.0", HubName("tencent/Hy3", "v1.0")),
        ("tencent/Hy3", HubName("tencent/Hy3")),
        ("./tencent/Hy3", None),
        ("/tencent/Hy3", None),
        ("../Hy3", None),
        ("Hy3", None),
        ("a/b/c", None),
    ],
)
def test_names(text: str, name: HubName | None) -> None:
    assert parse_hub_name(text) == name


@pytest.mark.parametrize("text", ["hf://", "hf://Hy3", "hf://a/b/c", "hf://a/b@", "hf://../b"])
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="not the name of a model") as caught:
        parse_hub_name(text)
    assert "hf://org/name" in caught.value.hint


def test_headers_equal_those_of_the_folder_and_no_shard_is_fetched(tmp_path: Path) -> None:
    with serve_hub(TINY) as hub:
        remote = read_remote_checkpoint(open_repository(NAME, hub.api(), tmp_path))
    local = open_checkpoint(TINY)
    assert remote.checkpoint.tensors == local.tensors
    for name, header in local.headers.items():
        found = remote.checkpoint.headers[name]
        assert found.tensors == header.tensors
        assert (found.metadata, found.data_start) == (header.metadata, header.data_start)
        assert found.file_bytes == header.file_bytes == (TINY / name).stat().st_size
        assert found.path == remote.folder / name and not found.path.exists()
    fetched = hub.content_requests()
    assert sorted(each.file for each in fetched) == sorted(local.headers)  # one request each
    assert {each.range for each in fetched} == {(0, FIRST_REQUEST_BYTES)}
    assert sum(hub.sent[name] for name in local.headers) <= 2 * FIRST_REQUEST_BYTES
    small = {each.file for each in hub.content_requests(".json")}
    assert "config.json" in small and "special_tokens_map.json" not in small
    assert remote.repository.commit == hub.commit
    assert remote.repository.shard_bytes == sum(
        path.stat().st_size for path in TINY.glob("*.safetensors")
    )


def test_a_long_header_takes_a_second_request(tmp_path: Path) -> None:
    specs = [TensorSpec(f"tensor.{number:050d}", "BF16", (2,)) for number in range(3000)]
    head = encode_header(specs, {})
    assert len(head) > 2 * FIRST_REQUEST_BYTES
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.safetensors").write_bytes(head + bytes(4 * 3000 + 0))
    (source / "config.json").write_text("{}")
    with serve_hub(source) as hub:
        remote = read_remote_checkpoint(open_repository(NAME, hub.api(), tmp_path / "cache"))
    assert len(remote.checkpoint.tensors) == 3000
    ranges = [each.range for each in hub.content_requests()]
    assert ranges == [(0, FIRST_REQUEST_BYTES), (FIRST_REQUEST_BYTES, len(head))]


def test_a_shard_shorter_than_the_first_request(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    head = encode_header([TensorSpec("a", "F32", (4,))], {})
    (source / "model.safetensors").write_bytes(head + bytes(16))
    (source / "config.json").write_text("{}")
    with serve_hub(source) as hub:
        remote = read_remote_checkpoint(open_repository(NAME, hub.api(), tmp_path / "cache"))
    assert list(remote.checkpoint.tensors) == ["a"]
    assert [each.range for each in hub.content_requests()] == [(0, len(head) + 16)]


@pytest.mark.parametrize("damage", [b"\xff" * 8, (2**40).to_bytes(8, "little"), b"\x10" + bytes(7)])
def test_unsound_headers_give_the_same_error_as_locally(tmp_path: Path, damage: bytes) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.safetensors").write_bytes(damage + b"no JSON at all..")
    (source / "config.json").write_text("{}")
    with pytest.raises(InputError) as local:
        open_checkpoint(source)
    with serve_hub(source) as hub, pytest.raises(InputError) as caught:
        read_remote_checkpoint(open_repository(NAME, hub.api(), tmp_path / "cache"))
    assert (caught.value.message, caught.value.hint) == (local.value.message, local.value.hint)
    assert caught.value.where.startswith("hf://org/hy3-tiny@111111111111/model.safetensors: byte")


def test_resets_and_server_errors_pass(tmp_path: Path) -> None:
    with serve_hub(TINY) as hub:
        hub.faults[FIRST] = [Fault(2, reset_after=1000), Fault(1, status=503)]
        remote = read_remote_checkpoint(open_repository(NAME, hub.api(), tmp_path))
    assert remote.checkpoint.tensors == open_checkpoint(TINY).tensors
    assert sum(each.file == FIRST for each in hub.content_requests()) == 4


def test_a_header_damaged_on_its_way_is_fetched_again(tmp_path: Path) -> None:
    with serve_hub(TINY) as hub:
        hub.faults[FIRST] = [Fault(1, flip_at=9)]
        remote = read_remote_checkpoint(open_repository(NAME, hub.api(), tmp_path))
    assert remote.checkpoint.tensors == open_checkpoint(TINY).tensors


def test_errors_that_stay(tmp_path: Path) -> None:
    with serve_hub(TINY) as hub:
        hub.faults[FIRST] = [Fault(100, status=500)]
        with pytest.raises(EnvironmentFault, match="status 500") as caught:
            read_remote_checkpoint(open_repository(NAME, hub.api(), tmp_path))
        assert FIRST in caught.value.where and caught.value.hint
        assert sum(each.file == FIRST for each in hub.content_requests()) == faults.ATTEMPTS


def test_a_server_that_ignores_ranges_is_refused_without_reading_the_shard(tmp_path: Path) -> None:
    with serve_hub(TINY) as hub:
        hub.faults[FIRST] = [Fault(100, ignore_range=True, seconds_per_chunk=0.01)]
        with pytest.raises(InputError, match="does not send the part"):
            read_remote_checkpoint(open_repository(NAME, hub.api(), tmp_path))
    assert hub.sent[FIRST] < (TINY / FIRST).stat().st_size / 2


def test_a_shard_that_changed_its_size_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for path in TINY.iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    with serve_hub(source) as hub:
        repository = open_repository(NAME, hub.api(), tmp_path / "cache")
        with (source / FIRST).open("ab") as file:
            file.write(b"more")
        from hy3.hub.headers import read_remote_headers

        with pytest.raises(InputError, match="of the file announced") as caught:
            read_remote_headers(repository, tmp_path)
    assert FIRST in caught.value.where


def test_wrong_bytes_of_a_small_file_are_fetched_again_once(tmp_path: Path) -> None:
    with serve_hub(TINY) as hub:
        hub.faults["config.json"] = [Fault(1, flip_at=5)]
        remote = read_remote_checkpoint(open_repository(NAME, hub.api(), tmp_path / "once"))
        assert (remote.folder / "config.json").read_bytes() == (TINY / "config.json").read_bytes()
        hub.faults["config.json"] = [Fault(100, flip_at=5)]
        with pytest.raises(InputError, match="arrived twice") as caught:
            read_remote_checkpoint(open_repository(NAME, hub.api(), tmp_path / "always"))
    assert "config.json" in caught.value.where


def test_unknown_names_and_revisions(tmp_path: Path) -> None:
    with serve_hub(TINY) as hub:
        for name, message in (
            (HubName("org/other"), "is not on the hub"),
            (HubName(REPOSITORY, "v2"), "has no such revision"),
        ):
            with pytest.raises(InputError, match=message) as caught:
                read_remote_checkpoint(open_repository(name, hub.api(), tmp_path))
            assert caught.value.where == str(name) and caught.value.hint


def test_a_gated_model_needs_the_token_and_the_token_stays_on_the_hub(tmp_path: Path) -> None:
    with serve_hub(TINY, gated=True, token="hf_right") as hub:
        for token in (False, "hf_wrong"):
            with pytest.raises(InputError, match="access is not granted") as caught:
                read_remote_checkpoint(open_repository(NAME, hub.api(token), tmp_path))
            assert "HF_TOKEN" in caught.value.hint
        read_remote_checkpoint(open_repository(NAME, hub.api("hf_right"), tmp_path))
        asked = [each for each in hub.requests if "/resolve/" in each.path]
        assert asked and all(each.authorized for each in asked)
        elsewhere = [each for each in hub.requests if each.path.startswith("/content/")]
        assert elsewhere and not any(each.authorized for each in elsewhere)


def test_no_hub_there(tmp_path: Path) -> None:
    with serve_hub(TINY) as hub:
        api = hub.api()
    with pytest.raises(EnvironmentFault, match="cannot be reached") as caught:
        read_remote_checkpoint(open_repository(NAME, api, tmp_path))
    assert "HF_ENDPOINT" in caught.value.hint


def test_no_checkpoint_in_the_repository(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "README.md").write_text("nothing")
    with serve_hub(tmp_path / "source") as hub, pytest.raises(InputError, match=r"no config\.json"):
        read_remote_checkpoint(open_repository(NAME, hub.api(), tmp_path / "cache"))


def test_an_index_that_names_a_missing_shard(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with serve_hub(source) as hub, pytest.raises(InputError, match="which is missing"):
        read_remote_checkpoint(open_repository(NAME, hub.api(), tmp_path / "cache"))
