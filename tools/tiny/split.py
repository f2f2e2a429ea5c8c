"""Which of the two sets an item belongs to, decided by a hash of its key alone."""

from __future__ import annotations

import hashlib

TRAIN, HELD_OUT = "train", "heldout"
HELD_OUT_SHARE = 10  # one item in this many


def split_of(key: str) -> str:
    """The set of the item with this key; the same on every machine and in every run."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return HELD_OUT if int.from_bytes(digest, "little") % HELD_OUT_SHARE == 0 else TRAIN
