"""The resume state keeps every bit and refuses what it did not write."""

from __future__ import annotations

import os

import pytest

from hy3.checkpoint.file_hash import FileHash
from hy3.checkpoint.manifest import Parameters
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

STATE = ResumeState(
    Parameters("experts-nvfp4", "exact", "same", "0.1.0"),
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
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"schema":"x"}',
        STATE.encode()[:-5],
        STATE.encode().replace(b"mtp", b"m"),
    ],
)
def test_damage_is_refused(tmp_path, data):
    (tmp_path / RESUME_NAME).write_bytes(data)
    with pytest.raises(InputError, match="is not the state of an interrupted run"):
        read_resume_state(tmp_path)


def test_stamp(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"123")
    os.utime(path, ns=(0, 123_456_789))
    assert stamp_of(path) == FileStamp(3, 123_456_789)
