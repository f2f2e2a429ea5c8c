"""``Hy3Model``: the trunk, the MTP layer and the head, over a paged cache or one whole sequence.

Knows nothing of requests, text or schedules; a ``Batch`` says all there is to know of its rows.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from hy3.checkpoint.model_config import Hy3Config, load_config
from hy3.kernels.head import head_logits
from hy3.kernels.rms_norm import rms_norm
from hy3.model.attention import Rows
from hy3.model.batch import Batch
from hy3.model.kv_pool import KvPool
from hy3.model.layer import decoder_layer
from hy3.model.mtp import mtp_input
from hy3.model.rope import inverse_frequencies, rope_tables
from hy3.model.weights import Weights, load_weights

__all__ = ["Batch", "Hy3Model", "KvPool", "load_model"]


class Hy3Model:
    """The forward pass of one checkpoint, in the dtype and on the device of its weights."""

    def __init__(self, config: Hy3Config, weights: Weights) -> None:
        self.config = config
        self.weights = weights
        self.device = weights.embedding.device
        self.dtype = weights.embedding.dtype
        # Once for all positions: sines of a step's few angles cost more than its products.
        frequencies = inverse_frequencies(config.rope_theta, config.head_dim).to(self.device)
        positions = torch.arange(config.max_positions, device=self.device)
        self._cos, self._sin = rope_tables(positions, frequencies, self.dtype)

    def new_pool(
        self, num_blocks: int, block_size: int, dtype: torch.dtype | None = None
    ) -> KvPool:
        """An empty cache with this checkpoint's scales; ``dtype`` defaults to the model's."""
        layers = self.weights.layers + ((self.weights.mtp.layer,) if self.weights.mtp else ())
        scales = [layer.attention.kv_scales for layer in layers]
        return KvPool(self.config, num_blocks, block_size, dtype or self.dtype, self.device, scales)

    @torch.inference_mode()
    def forward(self, batch: Batch, pool: KvPool) -> Tensor:
        """Hidden states after the final norm, [T, hidden]; writes the trunk's cache."""
        rows = Rows(*self._rope(batch.positions), batch, pool)
        return self._trunk(batch.token_ids, rows)

    @torch.inference_mode()
    def forward_full(self, token_ids: Tensor) -> Tensor:
        """Hidden states after the final norm of one whole sequence [T], without a cache."""
        positions = torch.arange(token_ids.numel(), device=self.device)
        return self._trunk(token_ids, Rows(*self._rope(positions)))

    @torch.inference_mode()
    def draft(self, batch: Batch, next_token_ids: Tensor, hidden: Tensor, pool: KvPool) -> Tensor:
        """Hidden states of the MTP layer after its norm, [T, hidden]; writes its cache.

        Row t pairs the state of position t with the token that follows it. Its logits predict the
        token after that; ``batch.token_ids`` is not read.

        Args:
            next_token_ids: [T], the tokens at position t + 1
            hidden: [T, hidden], what ``forward`` returned for position t, or for a deeper draft
                what ``draft`` returned
        """
        rows = Rows(*self._rope(batch.positions), batch, pool)
        return self._draft(next_token_ids, hidden, rows)

    @torch.inference_mode()
    def draft_full(self, next_token_ids: Tensor, hidden: Tensor) -> Tensor:
        """``draft`` for one whole sequence without a cache, from position 0."""
        positions = torch.arange(next_token_ids.numel(), device=self.device)
        return self._draft(next_token_ids, hidden, Rows(*self._rope(positions)))

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, vocab] fp32 of states from ``forward`` or ``draft``."""
        return head_logits(hidden, self.weights.head, self.config.lm_head_fp32)

    def _rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return F.embedding(positions, self._cos), F.embedding(positions, self._sin)

    def _trunk(self, token_ids: Tensor, rows: Rows) -> Tensor:
        hidden = F.embedding(token_ids, self.weights.embedding)
        for index, layer in enumerate(self.weights.layers):
            hidden = decoder_layer(hidden, layer, rows, index, self.config)
        return rms_norm(hidden, self.weights.norm, self.config.rms_norm_eps)

    def _draft(self, next_token_ids: Tensor, hidden: Tensor, rows: Rows) -> Tensor:
        mtp = self.weights.mtp
        assert mtp is not None, "the checkpoint has no MTP layer"
        embedded = F.embedding(next_token_ids, self.weights.embedding)
        state = mtp_input(embedded, hidden, mtp, self.config)
        state = decoder_layer(state, mtp.layer, rows, self.config.num_layers, self.config)
        return rms_norm(state, mtp.final_norm, self.config.rms_norm_eps)


def load_model(
    folder: Path, device: str | torch.device = "cpu", dtype: torch.dtype = torch.bfloat16
) -> Hy3Model:
    """Load a BF16 or NVFP4 checkpoint; ``dtype`` float32 widens every weight, for exactness."""
    config = load_config(folder)
    return Hy3Model(config, load_weights(folder, config, device, dtype))
