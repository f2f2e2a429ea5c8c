"""Text for the comparison: the checkpoint's own held-out file, or passages."""

from __future__ import annotations

import shutil
from pathlib import Path

from hy3.chat.tokenizer import Tokenizer
from hy3.demo.held_out import FILE_NAME, MAX_DOCUMENTS, MAX_TOKENS, held_out_documents
from support.scripted import make_random
from support.tiny import TINY


def test_the_bundled_model_brings_its_text(tmp_path: Path) -> None:
    documents = held_out_documents(TINY)
    assert len(documents) == MAX_DOCUMENTS
    assert all(2 <= len(ids) <= MAX_TOKENS for ids in documents)
    first = Tokenizer(TINY).decode(documents[0], skip_special=False)
    assert (TINY / FILE_NAME).read_text(encoding="utf-8").startswith(first[:100])


def test_documents_are_cut_at_the_divider(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(TINY / name, folder / name)
    (folder / FILE_NAME).write_text("one two three\n====\nfour == five\n====\n", encoding="utf-8")
    tokenizer = Tokenizer(folder)
    texts = [tokenizer.decode(ids) for ids in held_out_documents(folder)]
    assert texts == ["one two three", "four == five"]


def test_other_models_get_passages(tmp_path: Path) -> None:
    documents = held_out_documents(make_random(tmp_path / "model"))
    assert len(documents) == 20
    assert len({tuple(ids) for ids in documents}) == 20
