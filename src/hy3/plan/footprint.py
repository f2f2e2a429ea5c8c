"""``Footprint``: the memory of the fullest rank, term by term, and how many tokens fit beside it.

A term is arithmetic from headers and dimensions, or a figure that was measured and says where.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hy3.hardware.device import GIB, Device
from hy3.plan.model_shape import ROUTED, ModelShape
from hy3.plan.settings import VLLM, Settings
from hy3.plan.sharding import kv_rank_bytes, rank_bytes, stage_layers

# What libraries take beside the tensors once the CUDA context is there, which engines take off the
# free memory before they count: 0.225 to 0.230 GiB in every engine of
# benchmarks/results/plan_kv_tokens_h200.json. The communication library comes with several ranks.
_LIBRARY_BYTES = round(0.23 * GIB)
_COMMUNICATION_BYTES = round(0.5 * GIB)
# A captured graph, for each layer: 0.20 to 0.25 MiB in the same engines.
_GRAPH_BYTES_PER_LAYER = 2**18
# Engines refuse to start when less than their share is free: leave this much between.
_UTILIZATION_STEP = 0.01
_UTILIZATION_CAP = 0.92  # the default of vLLM 0.33


@dataclass(frozen=True)
class Term:
    """A part of the memory of one rank."""

    name: str
    nbytes: int
    reason: str


@dataclass(frozen=True)
class Footprint:
    """The fullest rank of a launch."""

    weights: tuple[Term, ...]
    others: tuple[Term, ...]
    budget_bytes: int  # utilization x visible memory
    free_bytes: int  # before the engine starts
    utilization: float
    utilization_reason: str
    kv_bytes_per_token: int
    load_peak_bytes: int  # beside the weights, while one layer is repacked

    @property
    def weight_bytes(self) -> int:
        """All weights of the rank."""
        return sum(term.nbytes for term in self.weights)

    @property
    def kv_bytes(self) -> int:
        """What is left for the KV cache; negative when not even the weights fit."""
        return self.budget_bytes - self.weight_bytes - sum(term.nbytes for term in self.others)

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV cache that fit, 0 when none do."""
        return max(0, self.kv_bytes) // self.kv_bytes_per_token

    @property
    def more_than_free(self) -> bool:
        """Whether the engine's share is not even free, which engines check first of all."""
        return self.budget_bytes > self.free_bytes

    def starts(self, settings: Settings) -> bool:
        """Whether the share is free, and one sequence can be as long as the context."""
        return not self.more_than_free and self.kv_tokens >= settings.context

    def holds_all(self, settings: Settings) -> bool:
        """Whether every sequence can be as long as the context at once."""
        return self.kv_tokens >= settings.context * settings.concurrency


def footprint(
    shape: ModelShape, device: Device, settings: Settings, free_bytes: int | None = None
) -> Footprint:
    """Memory of the fullest rank; ``free_bytes`` replaces what the table says is free."""
    free = device.free_bytes if free_bytes is None else free_bytes
    utilization, reason = _utilization(device, settings, free)
    return Footprint(
        weights=tuple(
            Term(
                each.name + (" (MTP)" if each.mtp else ""),
                rank_bytes(each, shape, settings),
                f"{each.bytes_per_parameter:.3g} bytes a parameter",
            )
            for each in shape.classes
            if settings.draft_depth or not each.mtp
        ),
        others=tuple(_others(shape, device, settings)),
        budget_bytes=int(utilization * device.visible_bytes),
        free_bytes=free,
        utilization=utilization,
        utilization_reason=reason,
        kv_bytes_per_token=kv_rank_bytes(shape, settings),
        load_peak_bytes=_repack_bytes(shape, settings),
    )


def largest_context(memory: Footprint, settings: Settings, max_positions: int) -> int:
    """The longest context that fits and the model knows, in steps of 1024, of all sequences."""
    each = memory.kv_tokens // settings.concurrency
    return min(max_positions, each // 1024 * 1024)


def largest_concurrency(memory: Footprint, settings: Settings) -> int:
    """How many sequences of the context asked for fit at a time."""
    return memory.kv_tokens // settings.context


def _utilization(device: Device, settings: Settings, free: int) -> tuple[float, str]:
    if settings.utilization is not None:
        return settings.utilization, "as given"
    share = free / device.visible_bytes
    steps = int((share - _UTILIZATION_STEP) / _UTILIZATION_STEP)
    value = max(0.0, min(_UTILIZATION_CAP, steps * _UTILIZATION_STEP))
    reason = (
        f"{free / GIB:.1f} of {device.visible_bytes / GIB:.1f} GiB are free, a share of "
        f"{share:.3f}; an engine refuses to start above it"
    )
    return round(value, 2), reason


def _others(shape: ModelShape, device: Device, settings: Settings) -> list[Term]:
    work = settings.batched_tokens * activation_bytes_per_token(shape, settings)
    terms = [
        Term("workspace", work, f"activations of {settings.batched_tokens} tokens in one step"),
        Term("libraries", _LIBRARY_BYTES, "CUDA libraries, beside tensors and context"),
    ]
    if settings.ranks > 1:
        terms.append(Term("communication", _COMMUNICATION_BYTES, "buffers between ranks"))
    if settings.graphs:
        layers = stage_layers(shape, settings) + (shape.mtp_layers if settings.draft_depth else 0)
        count = len(captured_sizes(settings))
        reason = f"{count} CUDA graphs of {layers} layers"
        terms.append(Term("graphs", count * layers * _GRAPH_BYTES_PER_LAYER, reason))
    if device.unified:
        # Engines count what grows beside them while they load. That was once about what a booted
        # machine holds, and no reason makes it more where less is free, which lowers their share.
        held = device.visible_bytes - device.free_bytes
        reason = "taken by the system while the engine loads: page cache counts as used"
        terms.append(Term("system", held, reason))
    return terms


def captured_sizes(settings: Settings) -> list[int]:
    """Tokens of the decode steps that vLLM captures: its list, as far as all sequences need it."""
    each = settings.draft_depth + 1
    most = settings.concurrency * each
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    return [size for size in sizes if size <= most and size % each == 0]


def activation_bytes_per_token(shape: ModelShape, settings: Settings) -> int:
    """BF16 values alive at the widest point of a layer, the MoE's, for one token of prefill.

    Residual, norm, and attention's output stay whole; q, k, v and the experts' columns are split.
    vLLM keeps each token's hidden state once for each of its experts until they are summed. A
    drafter takes the hidden states of all tokens, with their embeddings beside them: four more.
    """
    parts = settings.tensor_parallel
    states = (4 if settings.draft_depth == 0 else 8) + shape.experts_per_token
    whole = states * shape.hidden_size
    attention = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim
    experts = 3 * shape.experts_per_token * shape.expert_size
    dense = 3 * shape.dense_size if shape.dense_layers else 0
    return 2 * (whole + attention // parts + max(experts, dense) // parts)


def _repack_bytes(shape: ModelShape, settings: Settings) -> int:
    """Marlin orders the weights of one layer anew, so that layer is there twice for a moment."""
    routed = [each for each in shape.classes if each.name == ROUTED and not each.mtp]
    if not routed or settings.engine != VLLM or not shape.moe_layers:
        return 0
    whole = replace(settings, pipeline_parallel=1)
    return sum(rank_bytes(each, shape, whole) for each in routed) // shape.moe_layers
