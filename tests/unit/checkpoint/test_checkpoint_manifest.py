"""The manifest reads back, is the same bytes for the same content, and refuses damage."""

from __future__ import annotations

import json

import pytest

from hy3.checkpoint.file_hash import FileHash
from hy3.checkpoint.manifest import MANIFEST_NAME, Manifest, Origin, read_manifest
from hy3.errors import InputError
from support.recipes import PARAMETERS

A, B = FileHash("a" * 64, 5), FileHash("0" * 64, 0)


def test_round_trip(tmp_path):
    manifest = Manifest(PARAMETERS, {"config.json": A}, {"x.safetensors": B, "config.json": A})
    assert read_manifest(tmp_path) is None
    (tmp_path / MANIFEST_NAME).write_bytes(manifest.encode())
    assert read_manifest(tmp_path) == manifest


def test_origin_is_kept_where_there_is_one(tmp_path):
    manifest = Manifest(PARAMETERS, {"a": A}, {"b": B}, Origin("org/name", "1" * 40))
    (tmp_path / MANIFEST_NAME).write_bytes(manifest.encode())
    assert read_manifest(tmp_path) == manifest


def test_equal_content_gives_equal_bytes():
    one = Manifest(PARAMETERS, {"b": A, "a": B}, {"c": A, "b": A})
    other = Manifest(PARAMETERS, {"a": B, "b": A}, {"b": A, "c": A})
    assert one.encode() == other.encode()


def test_holds_nothing_of_the_machine():
    value = json.loads(Manifest(PARAMETERS, {"a": A}, {"b": B}).encode())
    assert set(value) == {"schema", "parameters", "source", "outputs"}
    assert value["parameters"] == vars(PARAMETERS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "other/1"}, "schema is 'other/1'"),
        ({"parameters": {"recipe": "x"}}, "parameters must be exactly"),
        ({"parameters": dict(vars(PARAMETERS), mtp=1)}, "parameters must be strings"),
        ({"source": []}, "source is not an object"),
        ({"outputs": {"../x": {"sha256": "a" * 64, "bytes": 1}}}, "not a plain file name"),
        ({"outputs": {"x": {"sha256": "A" * 64, "bytes": 1}}}, "exactly sha256 and bytes"),
        ({"outputs": {"x": {"sha256": "a" * 64, "bytes": True}}}, "exactly sha256 and bytes"),
        ({"origin": "org/name"}, "exactly repository and revision"),
        ({"origin": {"repository": "org/name", "revision": 1}}, "exactly repository and revision"),
        ({"outputs": {"x": 3}}, "exactly sha256 and bytes"),
    ],
)
def test_damage_is_refused(tmp_path, change, message):
    value = json.loads(Manifest(PARAMETERS, {"a": A}, {"b": B}).encode())
    (tmp_path / MANIFEST_NAME).write_text(json.dumps({**value, **change}))
    with pytest.raises(InputError, match=message) as caught:
        read_manifest(tmp_path)
    assert MANIFEST_NAME in caught.value.where


def test_bad_json_is_refused(tmp_path):
    (tmp_path / MANIFEST_NAME).write_text("{")
    with pytest.raises(InputError, match="is not valid JSON") as caught:
        read_manifest(tmp_path)
    assert caught.value.where.endswith("byte 1")
