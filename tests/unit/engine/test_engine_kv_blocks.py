"""The block pool's rules one by one; random walks are in tests/property."""

from __future__ import annotations

import pytest

from hy3.engine.kv_blocks import ROOT, BlockPool


def published(pool, token_ids):
    """Allocate and publish all full blocks of a sequence whose every token is computed."""
    link, blocks = ROOT, []
    for index in range(len(token_ids) // pool.block_size):
        key = pool.key(link, token_ids, index)
        if key is None:
            break
        blocks.append(pool.allocate())
        link = pool.publish(blocks[-1], key)
    return blocks


def test_lookup_needs_the_token_after_a_block():
    pool = BlockPool(8, 4)
    blocks = published(pool, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert len(blocks) == 2
    assert pool.lookup([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) == blocks
    assert pool.lookup([1, 2, 3, 4, 5, 6, 7, 8]) == blocks[:1], "one token must be left to compute"
    assert pool.lookup([1, 2, 3, 4, 5, 6, 7, 8, 0]) == blocks[:1], "the MTP entry differs"
    assert pool.lookup([1, 2, 3, 4, 0]) == []
    assert pool.lookup([0, 2, 3, 4, 5, 6, 7, 8, 9]) == []


def test_equal_tokens_after_different_prefixes_are_apart():
    pool = BlockPool(8, 2)
    first = published(pool, [1, 1, 5, 6, 7])
    second = published(pool, [2, 2, 5, 6, 7])
    assert pool.lookup([1, 1, 5, 6, 7]) == first
    assert pool.lookup([2, 2, 5, 6, 7]) == second


def test_hash_collisions_do_not_mix_blocks():
    pool = BlockPool(4, 1)
    assert hash((-1, 3)) == hash((-2, 3)), "Python hashes -1 and -2 alike"
    (block,) = published(pool, [-1, 3])
    assert pool.lookup([-2, 3]) == []
    assert pool.lookup([-1, 3]) == [block]


def test_released_blocks_stay_findable_until_evicted_tail_first():
    pool = BlockPool(3, 2)
    chain = published(pool, [1, 2, 3, 4, 5])
    pool.release(chain)
    assert pool.available == 3
    assert pool.lookup([1, 2, 3, 4, 5]) == chain
    assert pool.allocate() not in chain, "a blank block goes first"
    assert pool.allocate() == chain[1], "the end of the chain is evicted before its start"
    assert pool.lookup([1, 2, 3, 4, 5]) == chain[:1]


def test_least_recently_used_goes_first():
    pool = BlockPool(2, 1)
    (old,), (new,) = published(pool, [1, 9]), published(pool, [2, 9])
    pool.release([old])
    pool.release([new])
    pool.hold(old)
    pool.release([old])
    assert pool.allocate() == new


def test_a_shared_block_is_free_after_its_last_release():
    pool = BlockPool(1, 1)
    (block,) = published(pool, [1, 2])
    pool.hold(block)
    pool.release([block])
    assert pool.available == 0
    pool.check([[block]])
    pool.release([block])
    assert pool.available == 1
    pool.check([])


def test_publishing_twice_keeps_the_first_block():
    pool = BlockPool(2, 1)
    (first,) = published(pool, [1, 2])
    twin = pool.allocate()
    assert pool.publish(twin, (ROOT, (1, 2))) == pool.link(first)
    assert pool.lookup([1, 2]) == [first]
    pool.release([first, twin])
    pool.check([])


def test_faults_are_caught():
    pool = BlockPool(2, 1)
    block = pool.allocate()
    with pytest.raises(AssertionError, match="leaked"):
        pool.check([])
    with pytest.raises(AssertionError, match="shared"):
        pool.hold(block)
    pool.release([block])
    with pytest.raises(AssertionError, match="as often"):
        pool.release([block])
