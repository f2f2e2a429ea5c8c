"""The small files: edits of the source's JSON, and only the edits that are meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hy3.chat.markers import find_marker_suffix
from support.quantizing import run
from support.scripted import make_random


def edit(path: Path, changes: dict[str, object], drop: tuple[str, ...] = ()) -> dict[str, object]:
    value = json.loads(path.read_text()) | changes
    value = {key: item for key, item in value.items() if key not in drop}
    path.write_text(json.dumps(value))
    return value


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = make_random(tmp_path / "model", seed=2)
    (folder / "hy.tiktoken").write_text("vocabulary")
    (folder / "LICENSE.txt").write_text("terms")
    (folder / "README.md").write_text("the source's card")
    (folder / "pytorch_model.bin").write_bytes(b"weights of another format")
    (folder / ".gitattributes").write_text("x")
    return folder


def made(source: Path, **options: str) -> Path:
    out = source.parent / "out"
    run(source, out, **options)
    return out


def test_config_keeps_every_key_and_adds_three(source: Path) -> None:
    before = edit(source / "config.json", {"odd_key": {"kept": [1]}}, drop=("dtype", "torch_dtype"))
    after = json.loads((made(source) / "config.json").read_text())
    added = {key: after.pop(key) for key in ("dtype", "torch_dtype", "quantization_config")}
    assert after == before
    assert added["dtype"] == added["torch_dtype"] == "bfloat16"
    assert added["quantization_config"]["format"] == "nvfp4-pack-quantized"


def test_index_lists_every_tensor_and_the_total(source: Path) -> None:
    out = made(source)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    sizes, found = 0, {}
    for path in out.glob("*.safetensors"):
        head = int.from_bytes(path.read_bytes()[:8], "little")
        sizes += path.stat().st_size - 8 - head
        names = json.loads(path.read_bytes()[8 : 8 + head]).keys() - {"__metadata__"}
        found |= dict.fromkeys(names, path.name)
    assert found and index["weight_map"] == found
    assert index["metadata"]["total_size"] == sizes


def test_side_files(source: Path) -> None:
    out = made(source)
    for name in ("hy.tiktoken", "LICENSE.txt", "tokenizer.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    assert not (out / "pytorch_model.bin").exists() and not (out / ".gitattributes").exists()
    assert "the source's card" not in (out / "README.md").read_text()


def test_token_suffix_is_added_when_the_vocabulary_has_one(source: Path) -> None:
    before = edit(source / "tokenizer_config.json", {}, drop=("token_suffix",))
    config = json.loads((made(source) / "tokenizer_config.json").read_text())
    assert config == before | {"token_suffix": ":opensource"}


def test_bare_markers_need_no_token_suffix(source: Path) -> None:
    bare = (source / "tokenizer.json").read_text().replace(":opensource", "")
    (source / "tokenizer.json").write_text(bare)
    edit(source / "tokenizer_config.json", {}, drop=("token_suffix",))
    assert find_marker_suffix(source) == ""
    out = made(source)
    name = "tokenizer_config.json"
    assert (out / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize(("value", "kept"), [(0, False), (-1, True), (20, True), (None, False)])
def test_an_unusable_top_k_is_removed(source: Path, value: int | None, kept: bool) -> None:
    before = edit(source / "generation_config.json", {"top_k": value})
    after = json.loads((made(source) / "generation_config.json").read_text())
    assert after == (before if kept else {k: v for k, v in before.items() if k != "top_k"})


def test_card_says_what_became_what_how_exact_and_from_where(source: Path) -> None:
    card = (made(source) / "README.md").read_text()
    assert "| routed_expert (MTP) | NVFP4 | 24 |" in card
    assert "| expert_bias | F32 | 2 |" in card
    manifest = json.loads((source.parent / "out" / "hy3_manifest.json").read_text())
    hashes = [file["sha256"] for file in manifest["source"].values()]
    assert hashes and [each for each in hashes if each not in card] == []
    row = next(line for line in card.splitlines() if line.startswith("| routed_expert | NVFP4"))
    exact, under_max = (float(cell) for cell in row.split("|")[6:8])
    assert 0.005 < exact < under_max < 0.01
    assert str(source) not in card
