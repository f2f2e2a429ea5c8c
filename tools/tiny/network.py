"""The training-time forward pass of ``hy_v3``: batched, without a cache, differentiable.

Serving uses ``hy3.model``; a test holds the two together. All experts of a layer are computed for
every token as one wide MLP whose hidden columns are scaled by the routing weights: at this size
that is faster than gathering, and exactly the same function.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The dimensions of config.json that training needs."""

    vocab: int
    hidden: int
    dense: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    active: int
    expert: int
    scale: float
    theta: float
    eps: float
    dense_layers: int

    @classmethod
    def from_config(cls, raw: dict) -> Shape:
        return cls(
            vocab=raw["vocab_size"],
            hidden=raw["hidden_size"],
            dense=raw["intermediate_size"],
            layers=raw["num_hidden_layers"],
            heads=raw["num_attention_heads"],
            kv_heads=raw["num_key_value_heads"],
            head_dim=raw["head_dim"],
            experts=raw["num_experts"],
            active=raw["num_experts_per_tok"],
            expert=raw["expert_hidden_dim"],
            scale=raw["router_scaling_factor"],
            theta=raw["rope_parameters"]["rope_theta"],
            eps=raw["rms_norm_eps"],
            dense_layers=raw["first_k_dense_replace"],
        )


class Norm(nn.Module):
    """RMSNorm, computed in fp32 and cast back before the weight is applied."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight.to(x.dtype) * y.to(x.dtype)


def linear(into: int, out: int, gain: float = 1.0) -> nn.Linear:
    """A projection without bias, its outputs near ``gain`` for inputs near one."""
    layer = nn.Linear(into, out, bias=False)
    nn.init.normal_(layer.weight, std=gain * into**-0.5)
    return layer


class Attention(nn.Module):
    """Grouped-query attention; q and k are normalised per head before the rotation."""

    def __init__(self, shape: Shape, gain: float) -> None:
        super().__init__()
        self.shape = shape
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = linear(shape.hidden, wide)
        self.k_proj = linear(shape.hidden, narrow)
        self.v_proj = linear(shape.hidden, narrow)
        self.o_proj = linear(wide, shape.hidden, gain)
        self.q_norm = Norm(shape.head_dim, shape.eps)
        self.k_norm = Norm(shape.head_dim, shape.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            projection(x).view(batch, length, -1, self.shape.head_dim)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )  # [batch, length, heads, head_dim]
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


def rotation(length: int, shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, fp32, [length, 1, head_dim]."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=device)
    angles = torch.arange(length, device=device)[:, None] * shape.theta ** (
        -exponents / shape.head_dim
    )
    angles = torch.cat([angles, angles], -1)[:, None]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos.to(x.dtype) + torch.cat([-second, first], -1) * sin.to(x.dtype)


class Mlp(nn.Module):
    """SwiGLU; ``weights`` scale the hidden columns, which is how experts are mixed."""

    def __init__(self, shape: Shape, width: int, gain: float, fan: int | None = None) -> None:
        super().__init__()
        self.gate_proj = linear(shape.hidden, width)
        self.up_proj = linear(shape.hidden, width)
        self.down_proj = linear(width, shape.hidden, gain * (width / (fan or width)) ** 0.5)

    def forward(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        hidden = F.silu(self.gate_proj(x)) * self.up_proj(x)
        if weights is not None:
            hidden = (hidden.unflatten(-1, (weights.shape[-1], -1)) * weights[..., None]).flatten(
                -2
            )
        return self.down_proj(hidden)


class Moe(nn.Module):
    """Routed experts, stacked as one wide MLP, and a shared expert."""

    def __init__(self, shape: Shape, gain: float) -> None:
        super().__init__()
        self.shape = shape
        self.router = linear(shape.hidden, shape.experts)
        self.register_buffer("expert_bias", torch.zeros(shape.experts))
        self.register_buffer("load", torch.zeros(shape.experts), persistent=False)
        self.experts = Mlp(shape, shape.experts * shape.expert, gain, fan=shape.expert)
        self.shared = Mlp(shape, shape.expert, gain)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            scores = torch.sigmoid(x.float() @ self.router.weight.float().T)  # [.., experts]
        chosen = torch.topk(scores + self.expert_bias, self.shape.active, -1).indices
        mask = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        weights = scores * mask
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.shape.scale
        if self.training:
            self.load.add_(mask.detach().flatten(0, -2).sum(0))
        return self.experts(x, weights.to(x.dtype)) + self.shared(x)


class Block(nn.Module):
    """A pre-norm decoder layer."""

    def __init__(self, shape: Shape, dense: bool) -> None:
        super().__init__()
        gain = (2 * shape.layers) ** -0.5
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape, gain)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.mlp = Mlp(shape, shape.dense, gain) if dense else Moe(shape, gain / shape.scale)

    def forward(self, h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = h + self.self_attn(self.input_layernorm(h), cos, sin)
        return h + self.mlp(self.post_attention_layernorm(h))


class Network(nn.Module):
    """The trunk and the MTP layer, which shares embedding and head."""

    def __init__(self, shape: Shape, dtype: torch.dtype = torch.float32) -> None:
        """``dtype`` is that of the residual stream."""
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.embed = nn.Embedding(shape.vocab, shape.hidden)
        nn.init.normal_(self.embed.weight, std=1.0)
        self.layers = nn.ModuleList(
            Block(shape, dense=i < shape.dense_layers) for i in range(shape.layers)
        )
        self.norm = Norm(shape.hidden, shape.eps)
        self.head = linear(shape.hidden, shape.vocab, gain=0.5)
        self.enorm = Norm(shape.hidden, shape.eps)
        self.hnorm = Norm(shape.hidden, shape.eps)
        self.eh_proj = linear(2 * shape.hidden, shape.hidden)
        self.mtp = Block(shape, dense=False)
        self.final_layernorm = Norm(shape.hidden, shape.eps)
        for norm in (self.enorm, self.hnorm):  # so that eh_proj learns to rely on their weights
            nn.init.uniform_(norm.weight, 0.5, 1.5)

    def moes(self) -> Iterator[Moe]:
        """Every layer with experts, the MTP layer's last."""
        yield from (layer.mlp for layer in [*self.layers, self.mtp] if isinstance(layer.mlp, Moe))

    def trunk(self, ids: Tensor) -> Tensor:
        """[batch, length] token ids to hidden states after the last norm."""
        cos, sin = rotation(ids.shape[1], self.shape, ids.device)
        h = self.embed(ids).to(self.dtype)
        for layer in self.layers:
            h = layer(h, cos, sin)
        return self.norm(h)

    def draft(self, hidden: Tensor, next_ids: Tensor) -> Tensor:
        """The MTP layer's state at each position from its hidden state and the token after it."""
        cos, sin = rotation(next_ids.shape[1], self.shape, next_ids.device)
        embedded = self.embed(next_ids).to(self.dtype)
        joined = torch.cat([self.enorm(embedded), self.hnorm(hidden)], -1)
        return self.final_layernorm(self.mtp(self.eh_proj(joined), cos, sin))

    def forward(self, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted mean losses of the next token and of the draft.

        ``ids`` [batch, length + 2]; ``weights`` alike says how much each token counts as a target.
        """
        hidden = self.trunk(ids[:, :-2])
        drafted = self.draft(hidden, ids[:, 1:-1])
        main = self.loss(hidden, ids[:, 1:-1], weights[:, 1:-1])
        return main, self.loss(drafted, ids[:, 2:], weights[:, 2:])

    def loss(self, hidden: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Cross-entropy in nats, averaged by weight."""
        logits = self.head(hidden).float()
        each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        flat = weights.flatten()
        return (each * flat).sum() / flat.sum().clamp_min(1e-6)
