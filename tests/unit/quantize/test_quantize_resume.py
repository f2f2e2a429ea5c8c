"""The resume state keeps every bit and refuses what it did not write."""

from __future__ import annotations

import os

import pytest

from hy3.checkpoint.file_hash import FileHash
from hy3.errors import InputError
from hy3.quantize.resume import (
    RESUME_NAME,
    FileStamp,
    FinishedShard,
    ResumeState,
    read_resume_state,
    stamp_of,
)
from hy3.quantize.stats import WeightStats
from support.recipes import PARAMETERS

STATE = ResumeState(
    PARAMETERS,
    {"config.json": FileStamp(10, 1_700_000_000_123_456_789)},
    {
        "a.safetensors": FinishedShard(
            FileHash("a" * 64, 10),
            FileHash("b" * 64, 4),
            FileStamp(4, 2**62),
            {"routed_expert@1": WeightStats(0.1 + 0.2, 0.5, 1e-300, (1, 2, 3))},
        )
    },
)


def test_round_trip(tmp_path):
    assert read_resume_state(tmp_path) is None
    (tmp_path / RESUME_NAME).write_bytes(STATE.encode())
    assert read_resume_state(tmp_path) == STATE


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not valid JSON"),
        (b"[]", "is a JSON list"),
        (b"{}", "'schema' is missing"),
        (b'{"schema":"x"}', "the schema is 'x'"),
        (STATE.encode()[:-5], "is not valid JSON"),
        (STATE.encode().replace(b"mtp", b"m"), "unexpected keyword argument"),
        (STATE.encode().replace(b'"exact"', b"1"), "1 is not a string"),
        (STATE.encode().replace(b"@1", b"@one"), "invalid literal"),
        (STATE.encode().replace(b"0.5,", b"1" * 400 + b","), "is not a size"),
        (STATE.encode().replace(b"0.5,", b'"0.5",'), "'0.5' is not a size"),
        (STATE.encode().replace(b"0.5,", b"1e400,"), "beyond every double"),
        (STATE.encode().replace(b"[1, 2, 3]", b"[1, -2, 3]"), "-2 is not a count"),
        (STATE.encode().replace(b"[1, 2, 3]", b"[1, true]"), "True is not a count"),
    ],
)
def test_damage_is_refused(tmp_path, data, message):
    (tmp_path / RESUME_NAME).write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_resume_state(tmp_path)
    assert message in caught.value.message and RESUME_NAME in caught.value.where


def test_stamp(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"123")
    os.utime(path, ns=(0, 123_456_789))
    assert stamp_of(path) == FileStamp(3, 123_456_789)
