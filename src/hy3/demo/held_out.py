"""Text to compare two checkpoints on, as token ids.

A checkpoint that brings ``heldout.txt`` was not trained on it; documents are separated by lines of
``DIVIDER``. For others it is passages of the text that ``hy3 bench`` sends.
"""

from __future__ import annotations

from pathlib import Path

from hy3.bench.workloads import passage
from hy3.chat.tokenizer import Tokenizer

FILE_NAME = "heldout.txt"
DIVIDER = "\n====\n"
PASSAGES, PASSAGE_CHARACTERS = 20, 800
MAX_DOCUMENTS, MAX_TOKENS = 24, 512


def held_out_documents(model: Path) -> list[list[int]]:
    """Token ids of at most MAX_DOCUMENTS documents, each of 2 to MAX_TOKENS tokens."""
    path = model / FILE_NAME
    if path.exists():
        texts = path.read_text(encoding="utf-8").split(DIVIDER)
    else:
        texts = [passage(index, PASSAGE_CHARACTERS) for index in range(PASSAGES)]
    tokenizer = Tokenizer(model)
    encoded = [tokenizer.encode(text)[:MAX_TOKENS] for text in texts]
    return [ids for ids in encoded if len(ids) >= 2][:MAX_DOCUMENTS]
