"""Text to ids and back, special tokens, and where the eos ids come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Raw
from tokenizers import models

from hy3.chat.tokenizer import Tokenizer
from hy3.errors import InputError
from support.small_tokenizer import write_tokenizer

S = ":opensource"


@pytest.fixture(name="tokenizer", scope="module")
def _tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_tokenizer(tmp_path_factory.mktemp("small")))


@settings(max_examples=100)
@given(text=st.text(max_size=30))
def test_text_survives(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


@settings(max_examples=100)
@given(ids=st.lists(st.integers(0, 320), max_size=12))
def test_any_ids_decode_as_the_library_does(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert tokenizer.decode(ids) == tokenizer._tokenizer.decode(ids, skip_special_tokens=True)
    raw = tokenizer._tokenizer.decode(ids, skip_special_tokens=False)
    assert tokenizer.decode(ids, skip_special=False) == raw


def test_markers_survive_and_roles_are_dropped(tokenizer: Tokenizer) -> None:
    text = f"<｜hy_Assistant{S}｜><think{S}>a</think{S}><tool_calls{S}><｜hy_eos{S}｜>"
    ids = tokenizer.encode(text)
    assert len(ids) == 6
    assert tokenizer.decode(ids) == f"<think{S}>a</think{S}><tool_calls{S}>"
    assert tokenizer.decode(ids, skip_special=False) == text
    assert [tokenizer.is_special(id) for id in ids] == [True, False, False, False, False, True]


def test_ids_that_name_no_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert tokenizer.decode([-1, 10**6]) == ""
    assert tokenizer.token_id("<nothing>") is None
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) == f"</arg_value{S}>".encode()


def test_lone_surrogate_is_replaced(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"


@pytest.mark.parametrize("special", [False, True])
def test_markers_survive_even_when_marked_special(tmp_path: Path, special: bool) -> None:
    path = write_tokenizer(tmp_path, "") / "tokenizer.json"
    data = json.loads(path.read_text())
    for token in data["added_tokens"]:
        token["special"] = special or token["special"]
    path.write_text(json.dumps(data))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode("<think>a<｜hy_eos｜>")) == "<think>a"


def test_eos_ids_are_gathered_from_every_file(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    named = json.loads((tmp_path / "config.json").read_text())["eos_token_id"]
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
    assert Tokenizer(tmp_path).eos_ids == (5, 7, named)


@pytest.mark.parametrize("suffix", ["", S])
def test_eos_by_its_name_when_no_file_says_so(tmp_path: Path, suffix: str) -> None:
    write_tokenizer(tmp_path, suffix)
    expected = json.loads((tmp_path / "config.json").read_text())["eos_token_id"]
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}")
    assert Tokenizer(tmp_path).eos_ids == (expected,)


def test_foreign_and_missing_tokenizers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be loaded"):
        Tokenizer(tmp_path)
    Raw(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match="byte-level"):
        Tokenizer(tmp_path)
