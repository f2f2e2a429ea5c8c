"""Hostile files: valid ones that were damaged with knowledge of their structure, and raw bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st

# A string, a number, a word, or one character of punctuation.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|[a-zA-Z]+|[^\s]', re.DOTALL)
LITERALS: list[bytes] = [
    *(b"1e400", b"-1e400", b"9e999999999", b"NaN", b"Infinity", b"-Infinity"),
    *(b"1" * 5001, b"-" + b"7" * 4299, b"18446744073709551616", b"9223372036854775807"),
    *(b"4294967296", b"1099511627776", b"-1", b"-0", b"0", b"1", b"0.5", b"1e308", b"5e-324"),
    *(b"true", b"null", b'""', b"[]", b"{}", b"[0,0]", b"[null]", b'{"":{}}', b"[[],{}]"),
    *(b"[" * 3000, b"[" * 150 + b"]" * 150, b'{"a":' * 150 + b"1" + b"}" * 150),
    *(rb'"\ud800"', rb'"\u0000"', rb'"\n\u001b[31m"', b'"\x01"', b'"\xff"'),
    *('"\U0001f600"'.encode(), '"\u2028"'.encode(), '"\u202e"'.encode()),
    *(b'"' + b"a" * 9000 + b'"', b'"../../etc/passwd"', b'"a/b.safetensors"', b'"."'),
    *(b'"re:("', b'"re:(a+)+$"', b'"re:(.*)*x"', b'"re:.*"', b'"re:(?P<a>.)(?P=a)"', b'"Linear"'),
    *(rb'"re:(\\w+[.]?)+!"', rb'"re:(\\w|[a-z.])*!"', b'"re:a{1,99999}{1,99999}"'),
    *(b'"F8_E4M3"', b'"BOOL"', b'"U8"', b'"modelopt"', b'"compressed-tensors"', b'"NVFP4"'),
    *(b"[" + b"0," * 500 + b"0]", b'{"a":1,"a":1}', b'{"a":{"b":1,"b":1}}', b"//", b","),
]


def damaged(valid: bytes) -> st.SearchStrategy[bytes]:
    """Damaged copies of a valid JSON file: one to four edits, then sometimes another encoding."""
    tokens = _TOKEN.findall(valid)
    edits = st.lists(_edits(tokens), min_size=1, max_size=4)
    whole = st.sampled_from(_WHOLE)
    return st.one_of(
        edits.map(lambda chosen: _apply(chosen, tokens)),
        st.builds(lambda chosen, last: last(_apply(chosen, tokens)), edits, whole),
        st.builds(lambda flips: _flip(valid, flips), _flips(len(valid))),
        st.integers(0, len(valid)).map(lambda end: valid[:end]),
        whole.map(lambda last: last(valid)),
        st.sampled_from(LITERALS),
        st.binary(max_size=300),
    )


def damaged_shard(header: bytes, data: bytes) -> st.SearchStrategy[bytes]:
    """The same for a safetensors file; its length field fits the JSON, or says something else."""
    lengths = st.sampled_from([0, 1, 7, 8, 99_999_999, 100_000_001, 2**31, 2**63, 2**64 - 1])
    whole = len(header).to_bytes(8, "little") + header + data
    return st.one_of(
        damaged(header).map(lambda json: len(json).to_bytes(8, "little") + json + data),
        damaged(header).map(lambda json: len(json).to_bytes(8, "little") + json),
        st.builds(lambda length: length.to_bytes(8, "little") + header + data, lengths),
        st.builds(lambda flips: _flip(whole, flips), _flips(len(whole))),
        st.integers(0, len(whole)).map(lambda end: whole[:end]),
        st.binary(max_size=300),
    )


Edit = Callable[[list[bytes]], None]


def _edits(tokens: list[bytes]) -> st.SearchStrategy[Edit]:
    place = st.integers(0, max(len(tokens) - 1, 0))
    return st.one_of(
        st.builds(_replace, place, st.sampled_from(LITERALS)),
        st.builds(_replace, place, st.sampled_from(tokens or [b"{"])),
        st.builds(_insert, place, st.sampled_from(LITERALS)),
        st.builds(_delete, place, st.integers(1, 6)),
        st.builds(_repeat, place, st.integers(1, 30), st.sampled_from([1, 1, 1, 40])),
        st.builds(_swap, place, place),
    )


def _replace(at: int, token: bytes) -> Edit:
    return lambda tokens: tokens.__setitem__(slice(at, at + 1), [token])


def _insert(at: int, token: bytes) -> Edit:
    return lambda tokens: tokens.insert(at, token)


def _delete(at: int, count: int) -> Edit:
    return lambda tokens: tokens.__delitem__(slice(at, at + count))


def _repeat(at: int, count: int, times: int) -> Edit:
    """The next tokens again: a key and its value, if they end in a comma, stand there twice."""
    return lambda tokens: tokens.__setitem__(
        slice(at, at), tokens[at : at + count] * times if len(tokens) < 4000 else []
    )


def _swap(one: int, other: int) -> Edit:
    def swap(tokens: list[bytes]) -> None:
        if max(one, other) < len(tokens):
            tokens[one], tokens[other] = tokens[other], tokens[one]

    return swap


def _apply(edits: list[Edit], tokens: list[bytes]) -> bytes:
    changed = list(tokens)
    for edit in edits:
        edit(changed)
    return b" ".join(changed)


def _flips(length: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    place = st.integers(0, max(length - 1, 0))
    return st.lists(st.tuples(place, st.integers(0, 255)), min_size=1, max_size=5)


def _flip(data: bytes, flips: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data or b"\0")
    for place, value in flips:
        changed[place] = value
    return bytes(changed)


def _utf16(data: bytes) -> bytes:
    return data.decode("utf-8", "replace").encode("utf-16")


_WHOLE: list[Callable[[bytes], bytes]] = [
    lambda data: b"\xef\xbb\xbf" + data,
    _utf16,
    lambda data: b"[" + data + b"]",
    lambda data: b'"' + data + b'"',
    lambda data: data + data,
    lambda data: data + b"\0",
    lambda data: b"\n" * 500 + data,
    lambda data: b"",
]

# What may stand in place of a file; each takes the path, where nothing is yet.
PLACES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "fifo": lambda path: os.mkfifo(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "full": lambda path: path.symlink_to("/dev/full"),
    "loop": lambda path: path.symlink_to(path.name),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "to its folder": lambda path: path.symlink_to("."),
    "unreadable": lambda path: path.symlink_to("/proc/self/mem"),
}
