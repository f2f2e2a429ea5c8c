"""Each automatic choice, its reason, and what cannot be done."""

from __future__ import annotations

from typing import Any

import pytest

from hy3.deploy.native_plan import BLOCK_SIZE, NativeOptions, Surroundings, block_bytes, resolve
from hy3.errors import EnvironmentFault, InputError
from hy3.model.kv_pool import block_bytes as pool_block_bytes
from support.scripted import SMALL

GIB = 1024**3


def around(free_bytes: int = GIB, scales: bool = False, mtp: int = 1, **dims: Any) -> Surroundings:
    return Surroundings(small_config(mtp, **dims), scales, free_bytes, 0.5)


def small_config(mtp: int = 1, **dims: Any):
    from hy3.checkpoint.model_config import parse_config

    raw = SMALL | {
        "model_type": "hy_v3",
        "vocab_size": 300,
        "num_nextn_predict_layers": mtp,
        "first_k_dense_replace": 1,
        "num_shared_experts": 1,
        "router_scaling_factor": 1.0,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 1e4},
        "qk_norm": True,
        "route_norm": True,
        "tie_word_embeddings": False,
    }
    return parse_config(raw | dims)


def test_defaults_on_a_machine_with_room() -> None:
    plan = resolve(NativeOptions(), around())
    engine = plan.engine
    assert (engine.max_context, engine.max_requests, engine.draft_depth) == (2048, 8, 1)
    assert engine.kv_dtype == "bf16"
    assert engine.num_blocks == 8 * (2048 // BLOCK_SIZE + 1)
    assert len(plan.reasons) == 4


def test_draft_depth_follows_the_checkpoint() -> None:
    assert resolve(NativeOptions(), around(mtp=0)).engine.draft_depth == 0
    assert resolve(NativeOptions(drafts=3), around()).engine.draft_depth == 3


def test_kv_dtype_follows_the_scales() -> None:
    assert resolve(NativeOptions(), around(scales=True)).engine.kv_dtype == "fp8"
    assert resolve(NativeOptions(kv_dtype="bf16"), around(scales=True)).engine.kv_dtype == "bf16"
    assert resolve(NativeOptions(kv_dtype="fp8"), around()).engine.kv_dtype == "fp8"


def test_block_bytes_are_those_of_the_pool() -> None:
    import torch

    config = small_config()
    for name, dtype in (("bf16", torch.bfloat16), ("fp8", torch.float8_e4m3fn)):
        assert block_bytes(config, name) == pool_block_bytes(config, BLOCK_SIZE, dtype)


def test_little_memory_shrinks_the_cache_then_the_context() -> None:
    one = block_bytes(small_config(), "bf16")
    some = resolve(NativeOptions(), around(free_bytes=2 * 200 * one)).engine
    assert (some.num_blocks, some.max_context) == (200, 2048)
    few = resolve(NativeOptions(), around(free_bytes=2 * 10 * one))
    assert (few.engine.num_blocks, few.engine.max_context) == (10, 160)
    assert any("as much as the KV cache holds, of 2048" in reason for reason in few.reasons)


def test_a_context_that_was_asked_for_is_kept_or_refused() -> None:
    one = block_bytes(small_config(), "bf16")
    assert resolve(NativeOptions(max_context=160), around(20 * one)).engine.max_context == 160
    with pytest.raises(EnvironmentFault, match="176 tokens does not fit"):
        resolve(NativeOptions(max_context=176), around(20 * one))
    with pytest.raises(EnvironmentFault, match="does not fit"):
        resolve(NativeOptions(), around(free_bytes=one))
    with pytest.raises(InputError, match="2048 positions, not 4096"):
        resolve(NativeOptions(max_context=4096), around())
