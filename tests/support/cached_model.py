"""A model whose next token is an exact function of the cached tokens, to make cache faults show.

It has the interface of ``Hy3Model`` and keeps whole numbers where that keeps keys and values: the
trunk's entry at position i is token i, the MTP layer's is the pair of state i + 1 and token i + 1.
Every pass reads the whole context back through the block tables. A state is a hash of the prefix,
so one wrong entry changes everything after it, without the rounding of a real model.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

VOCAB = 13
EOS = 12
PRIME = 1_000_003
WRONG_DRAFTS = 3  # one draft in so many differs from what the trunk will say


def random_logits(vocab_size: int) -> torch.Tensor:
    """A table of logits; a state picks its row by its remainder."""
    return torch.randn(997, vocab_size, generator=torch.Generator().manual_seed(1)) * 2


LOGITS = random_logits(VOCAB)


def advance(state: int, token: int) -> int:
    """The state after one more token; 0 is the state of the empty prefix."""
    return (state * 31 + token + 1) % PRIME


def prefix_logits(token_ids: list[int]) -> torch.Tensor:
    """What the trunk says after a prefix, [vocab], without any cache."""
    state = 0
    for token in token_ids:
        state = advance(state, token)
    return LOGITS[state % len(LOGITS)]


class CachedModel:
    """States are [rows, 2] int64: the hash, and 1 where the MTP layer made it."""

    device = torch.device("cpu")

    def __init__(self, vocab_size=VOCAB, eos_token_ids=(EOS,)):
        self.config = SimpleNamespace(
            vocab_size=vocab_size,
            num_mtp_layers=1,
            max_positions=4096,
            eos_token_ids=eos_token_ids,
        )
        self.table = random_logits(vocab_size)

    def new_pool(self, num_blocks, block_size, dtype=None):
        slots = num_blocks * block_size
        return SimpleNamespace(
            block_size=block_size,
            trunk=torch.full((slots,), -1, dtype=torch.int64),
            mtp=torch.full((slots, 2), -1, dtype=torch.int64),
        )

    def forward(self, batch, pool):
        pool.trunk[batch.slots] = batch.token_ids
        states = []
        for slots, first_row_position in contexts(batch, pool.block_size):
            state = 0
            for position, token in enumerate(pool.trunk[slots].tolist()):
                assert token >= 0, "an entry was read before it was written"
                state = advance(state, token)
                if position >= first_row_position:
                    states.append([state, 0])
        return torch.tensor(states)

    def draft(self, batch, next_token_ids, hidden, pool):
        following = [
            [advance(state, token), token]
            for (state, _), token in zip(hidden.tolist(), next_token_ids.tolist(), strict=True)
        ]
        pool.mtp[batch.slots] = torch.tensor(following)
        for slots, _ in contexts(batch, pool.block_size):
            previous = None
            for state, token in pool.mtp[slots].tolist():
                if previous is not None:
                    assert state == advance(previous, token), "an MTP entry is of another token"
                previous = state
        return torch.tensor([[state, 1] for state, _ in following])

    def logits(self, hidden):
        state, drafted = hidden[:, 0], hidden[:, 1].bool()
        logits = self.table[state % len(self.table)]
        wrong = drafted & (state % WRONG_DRAFTS == 0)
        return torch.where(wrong[:, None], logits.roll(1, dims=1), logits)


def contexts(batch, block_size):
    """Per sequence: the slots of its whole context, and the position of its first row."""
    starts, lengths = batch.query_starts.tolist(), batch.context_lengths.tolist()
    for index, length in enumerate(lengths):
        table = batch.block_tables[index].tolist()
        slots = [table[p // block_size] * block_size + p % block_size for p in range(length)]
        rows = slice(starts[index], starts[index + 1])
        count = starts[index + 1] - starts[index]
        assert batch.positions[rows].tolist() == list(range(length - count, length))
        assert batch.slots[rows].tolist() == slots[length - count :]
        yield torch.tensor(slots), length - count
