"""``Tokenizer``: text to ids and back for one checkpoint, on the ``tokenizers`` library.

Decoding goes through the bytes of each token, so text that is decoded piece by piece equals text
decoded at once. Role and eos tokens are dropped by default; the markers of reasoning and tool calls
survive, because the parser of the chat protocol reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as _Tokenizer

from hy3.checkpoint.json_file import read_json_if_there
from hy3.checkpoint.model_config import CONFIG_NAME
from hy3.errors import InputError

_MARKER = re.compile(r"</?[a-z_]+(?::[^\s>]+)?>")
# What the family calls its end-of-turn token; conversions exist that name it in no other file.
_EOS = re.compile(r"<｜hy_eos(?::[^\s｜]+)?｜>|<eos(?::[^\s>]+)?>")


class Tokenizer:
    """The tokenizer of ``folder``; ids come from its files, never from a table.

    Attributes:
        vocab_size: one more than the largest id; the model's own vocabulary may be padded.
        eos_ids: every id that ends a completion, ascending; empty if the files name none.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        try:
            self._tokenizer = _Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises the bare class, whatever is wrong
            raise InputError(
                f"cannot be loaded ({error})",
                hint="point to a folder that holds a whole checkpoint, tokenizer files included",
                where=str(path),
            ) from error
        if "ByteLevel" not in repr(self._tokenizer.decoder):
            raise InputError(
                "the tokenizer is not byte-level",
                hint="hy3 reads the byte-level BPE tokenizers of the hy_v3 family",
                where=str(path),
            )
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {
            id
            for id, token in added.items()
            if token.special and not _MARKER.fullmatch(token.content)
        }
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self._bytes: dict[int, bytes] = {id: _to_bytes(token) for token, id in vocabulary.items()}
        self._bytes.update({id: token.content.encode() for id, token in added.items()})
        self.vocab_size = max(self._bytes, default=-1) + 1
        self.eos_ids = self._find_eos_ids(folder, vocabulary)

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``; nothing is added. A lone surrogate is read as U+FFFD."""
        if not text.isascii():
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        # ``encode`` would find offsets too, and on megabytes of text hold the interpreter's lock.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return list(encoding.ids)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of ``ids``; broken UTF-8 becomes U+FFFD, ids out of range become nothing."""
        kept = (id for id in ids if not (skip_special and id in self._special))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        """The bytes that a token stands for; empty for an id that names no token."""
        return self._bytes.get(id, b"")

    def is_special(self, id: int) -> bool:
        """Whether ``decode`` drops this token by default."""
        return id in self._special

    def token_id(self, token: str) -> int | None:
        """The id of a token by its exact spelling in the vocabulary."""
        id = self._tokenizer.token_to_id(token)
        return None if id is None else int(id)

    def _find_eos_ids(self, folder: Path, vocabulary: dict[str, int]) -> tuple[int, ...]:
        found: set[int] = set()
        for name in (CONFIG_NAME, "generation_config.json"):
            found |= _ids((read_json_if_there(folder / name) or {}).get("eos_token_id"))
        config = read_json_if_there(folder / "tokenizer_config.json") or {}
        named = config.get("eos_token")
        spelled = named.get("content") if isinstance(named, dict) else named
        if isinstance(spelled, str) and spelled in vocabulary:
            found.add(vocabulary[spelled])
        if not found:
            found = {id for token, id in vocabulary.items() if _EOS.fullmatch(token)}
        return tuple(sorted(found))


def _ids(value: Any) -> set[int]:
    values = value if isinstance(value, list) else [value]
    return {item for item in values if isinstance(item, int) and not isinstance(item, bool)}


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, the rest for
    characters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _to_bytes(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[character] for character in token)
    except KeyError:
        return token.encode()
