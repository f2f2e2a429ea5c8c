"""What a recipe costs: bytes of the file, bytes read for a token, and the cards that hold it.

All of it follows from the shapes of the model and the forms of its weights; nothing is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hy3.checkpoint.forms import stored_specs
from hy3.checkpoint.model_config import Hy3Config
from hy3.checkpoint.names import expected_tensors, is_mtp, tensor_class
from hy3.quantize.assignment import Assignment

CARDS_GIB = (24, 32)
# Of a card's memory for the engine; vLLM's own default is 0.92 and less is safer.
MEMORY_SHARE = 0.90
# Activations, CUDA graphs and kernels' workspaces of one small engine.
WORKSPACE_BYTES = 10**9
KV_TOKENS = 16384
_KV_ELEMENT_BYTES = 2


@dataclass(frozen=True)
class RecipeSize:
    """Tensor bytes: of the file, and of what one token reads without drafts, by tensor class."""

    file_bytes: int
    token_bytes_by_class: dict[str, int]

    @property
    def token_bytes(self) -> int:
        """Read for one token at batch 1; what a memory's bandwidth divides by."""
        return sum(self.token_bytes_by_class.values())


def size_of(config: Hy3Config, assignment: Assignment) -> RecipeSize:
    """Count every tensor that ``quantize`` writes.

    A token reads one row of the embedding, its share of the routed experts, everything else of
    the trunk once, and nothing of the MTP layer.
    """
    file_bytes = 0
    by_class: dict[str, Fraction] = {}
    for name, spec in expected_tensors(config).items():
        nbytes = sum(part.nbytes for part in stored_specs(spec, assignment.forms[name]))
        file_bytes += nbytes
        kind = tensor_class(name)
        if not is_mtp(name, config):
            share = _share_of_token(config, kind)
            by_class[kind] = by_class.get(kind, Fraction(0)) + nbytes * share
    return RecipeSize(file_bytes, {kind: round(each) for kind, each in by_class.items()})


def _share_of_token(config: Hy3Config, kind: str) -> Fraction:
    if kind == "embedding":
        return Fraction(1, config.vocab_size)
    if kind == "routed_expert":
        return Fraction(config.experts_per_token, config.num_experts)
    return Fraction(1)


def kv_bytes(config: Hy3Config, tokens: int) -> int:
    """Of a BF16 KV cache of the trunk."""
    per_layer = 2 * config.num_kv_heads * config.head_dim * _KV_ELEMENT_BYTES
    return tokens * config.num_layers * per_layer


def needed_bytes(config: Hy3Config, size: RecipeSize) -> int:
    """Weights, the KV cache of KV_TOKENS tokens in BF16, and the workspace."""
    return size.file_bytes + kv_bytes(config, KV_TOKENS) + WORKSPACE_BYTES


def fits_card(config: Hy3Config, size: RecipeSize, card_gib: int) -> bool:
    """Whether one card of so many GiB serves the file."""
    return needed_bytes(config, size) <= card_gib * 2**30 * MEMORY_SHARE
