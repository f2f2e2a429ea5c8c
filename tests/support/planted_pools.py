"""Block pools with a fault, for tests that must find it."""

from __future__ import annotations

from hy3.engine.kv_blocks import BlockPool


class KeyWithoutNextToken(BlockPool):
    """Forgets that the MTP entry of a block's last position depends on the token after it."""

    def key(self, link, token_ids, index):
        full = super().key(link, token_ids, index)
        return full and (full[0], full[1][:-1])


class KeyWithoutChain(BlockPool):
    """Takes equal tokens for equal prefixes."""

    def key(self, link, token_ids, index):
        full = super().key(link, token_ids, index)
        return full and (0, full[1])
