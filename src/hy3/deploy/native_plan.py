"""``NativePlan``: every "auto" of the native engine, resolved once and with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hy3.checkpoint.model_config import Hy3Config
from hy3.engine.config import EngineConfig, KvDtype
from hy3.errors import EnvironmentFault, InputError
from hy3.units import format_bytes

BLOCK_SIZE = 16
_KV_BYTES: dict[KvDtype, int] = {"bf16": 2, "fp32": 4, "fp8": 1}


@dataclass(frozen=True)
class NativeOptions:
    """What the user asked for; None and "auto" leave the choice to ``resolve``."""

    max_context: int | None = None
    max_requests: int = 8
    drafts: int | None = None
    kv_dtype: Literal["auto"] | KvDtype = "auto"


@dataclass(frozen=True)
class Surroundings:
    """What ``resolve`` has to know besides the options."""

    config: Hy3Config
    has_kv_scales: bool
    free_bytes: int  # memory left on the device once the weights are loaded
    cache_share: float  # of ``free_bytes``, what the KV cache may take


@dataclass(frozen=True)
class NativePlan:
    """The engine's sizes, and for each choice made here one line that says why."""

    engine: EngineConfig
    reasons: tuple[str, ...]


def resolve(options: NativeOptions, around: Surroundings) -> NativePlan:
    """Settle everything that is still open.

    Raises InputError for what the model cannot do and EnvironmentFault for a cache that does not
    fit into memory.
    """
    drafts, why_drafts = _draft_depth(options, around.config)
    kv_dtype, why_kv_dtype = _kv_dtype(options, around.has_kv_scales)
    wanted = options.max_context or around.config.max_positions
    if wanted > around.config.max_positions:
        raise InputError(
            f"the model knows {around.config.max_positions} positions, not {wanted}",
            hint="lower it",
            where="--max-context",
        )
    affordable = _affordable_blocks(around, kv_dtype)
    if affordable * BLOCK_SIZE < (wanted if options.max_context else BLOCK_SIZE):
        raise EnvironmentFault(
            f"a KV cache of {wanted} tokens does not fit into {format_bytes(around.free_bytes)}",
            hint="lower --max-context, use --kv-dtype fp8, or free memory",
            where="--max-context",
        )
    max_context = min(wanted, affordable * BLOCK_SIZE)
    # One block more per request: drafts may reach beyond the last position that is kept.
    enough = options.max_requests * (-(-max_context // BLOCK_SIZE) + 1)
    num_blocks = min(enough, affordable)
    engine = EngineConfig(
        num_blocks=num_blocks,
        max_context=max_context,
        block_size=BLOCK_SIZE,
        max_requests=options.max_requests,
        draft_depth=drafts,
        kv_dtype=kv_dtype,
    )
    limited = num_blocks < enough
    cache_bytes = num_blocks * block_bytes(around.config, kv_dtype)
    reasons = (
        f"drafts {drafts}: {why_drafts}",
        f"KV dtype {kv_dtype}: {why_kv_dtype}",
        f"context {max_context} tokens: {_why_context(options, wanted, max_context)}",
        f"KV cache {num_blocks * BLOCK_SIZE} tokens, {format_bytes(cache_bytes)}: "
        + (
            f"{around.cache_share:.0%} of {format_bytes(around.free_bytes)} free"
            if limited
            else f"room for {options.max_requests} requests of full context"
        ),
    )
    return NativePlan(engine, reasons)


def block_bytes(config: Hy3Config, kv_dtype: KvDtype) -> int:
    """Keys and values of one block over all cached layers."""
    elements = BLOCK_SIZE * config.num_kv_heads * config.head_dim * config.num_cached_layers
    return 2 * elements * _KV_BYTES[kv_dtype]


def _affordable_blocks(around: Surroundings, kv_dtype: KvDtype) -> int:
    return int(around.free_bytes * around.cache_share) // block_bytes(around.config, kv_dtype)


def _draft_depth(options: NativeOptions, config: Hy3Config) -> tuple[int, str]:
    if options.drafts is not None:
        return options.drafts, "as asked"
    if not config.num_mtp_layers:
        return 0, "the checkpoint has no MTP layer"
    return 1, "the second draft is accepted too rarely to pay"


def _kv_dtype(options: NativeOptions, has_kv_scales: bool) -> tuple[KvDtype, str]:
    if options.kv_dtype != "auto":
        return options.kv_dtype, "as asked"
    if has_kv_scales:
        return "fp8", "the checkpoint has calibrated KV scales"
    return "bf16", "the checkpoint has no KV scales, and FP8 without them costs quality"


def _why_context(options: NativeOptions, wanted: int, max_context: int) -> str:
    if max_context < wanted:
        return f"as much as the KV cache holds, of {wanted}"
    return "as asked" if options.max_context else "the model's"
