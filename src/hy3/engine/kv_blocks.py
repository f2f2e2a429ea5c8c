"""``BlockPool``: who holds which block of the KV cache, and what a finished block stands for.

A full block can be published under the tokens that it was computed from and be shared by later
sequences. A chain of published blocks is walked from ``ROOT``: the key of a block is its
predecessor's link in the chain and its own token ids, compared exactly, so that a block can never
stand for other tokens whatever their hashes are.

The key holds one token more than the block: the MTP layer's entry at position i is computed from
the token at i + 1, so the last entry of a block is not determined by the block's own tokens.

A published block that nobody holds stays findable until its room is needed, least recently used
first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

ROOT = 0  # the link that stands for the empty prefix

Key = tuple[int, tuple[int, ...]]  # (link of the preceding block, block's tokens and the next one)


class BlockPool:
    """Allocation, sharing and eviction of ``num_blocks`` blocks of ``block_size`` positions."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._holders = [0] * num_blocks
        self._keys: list[Key | None] = [None] * num_blocks
        self._links = [ROOT] * num_blocks
        self._blocks: dict[Key, int] = {}
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # published, held by nobody
        self._next_link = ROOT + 1

    @property
    def available(self) -> int:
        """Blocks that ``allocate`` can hand out."""
        return len(self._blank) + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks held by someone."""
        return self.num_blocks - self.available

    def blocks_for(self, positions: int) -> int:
        """How many blocks hold that many positions."""
        return -(-positions // self.block_size)

    def allocate(self) -> int:
        """A block for the caller alone; the caller has seen that one is ``available``."""
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            self._forget(block)
        self._holders[block] = 1
        return block

    def hold(self, block: int) -> None:
        """Share a published block; every holder releases it once."""
        assert self._keys[block] is not None, "only a published block is shared"
        self._idle.pop(block, None)
        self._holders[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one hold of each; the later blocks of a chain are evicted before the earlier."""
        for block in reversed(blocks):
            assert self._holders[block] > 0, "a block is released as often as it is held"
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if self._keys[block] is None:
                self._blank.append(block)
            else:
                self._idle[block] = None

    def key(self, link: int, token_ids: Sequence[int], index: int) -> Key | None:
        """The key of block ``index`` of a sequence; None while its next token is unknown."""
        start, end = index * self.block_size, (index + 1) * self.block_size
        if len(token_ids) <= end:
            return None
        return link, tuple(token_ids[start : end + 1])

    def lookup(self, token_ids: Sequence[int]) -> list[int]:
        """The published blocks that hold the longest known prefix, at least one token short of
        all: something must be left to compute."""
        found: list[int] = []
        link = ROOT
        while (key := self.key(link, token_ids, len(found))) in self._blocks:
            block = self._blocks[key]
            found.append(block)
            link = self._links[block]
        return found

    def link(self, block: int) -> int:
        """Where the chain goes on after a published block."""
        assert self._keys[block] is not None
        return self._links[block]

    def publish(self, block: int, key: Key) -> int:
        """Make a full block findable; returns the link for the block after it.

        If another block already stands for the same tokens, that one stays and this one remains
        its holder's own.
        """
        known = self._blocks.get(key)
        if known is not None:
            return self._links[known]
        assert self._holders[block] and self._keys[block] is None
        self._keys[block] = key
        self._links[block] = self._next_link
        self._blocks[key] = block
        self._next_link += 1
        return self._links[block]

    def _forget(self, block: int) -> None:
        key = self._keys[block]
        assert key is not None
        del self._blocks[key]
        self._keys[block] = None

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Assert that exactly ``tables`` hold blocks and that every other block is free once."""
        holders = [0] * self.num_blocks
        for table in tables:
            for block in table:
                holders[block] += 1
        assert holders == self._holders, "a block is leaked or released too often"
        free = sorted([*self._blank, *self._idle])
        assert free == [b for b in range(self.num_blocks) if not holders[b]], "free list is wrong"
        assert all(self._keys[block] is None for block in self._blank)
        assert all(self._keys[block] is not None for block in self._idle)
        assert {b: k for k, b in self._blocks.items()} == {
            b: k for b, k in enumerate(self._keys) if k is not None
        }
