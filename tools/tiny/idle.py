"""Shows that no part of a checkpoint is idle: each is reset in turn and the losses compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from hy3.model.decoder import Hy3Model
from hy3.model.layer import LayerWeights
from hy3.model.moe import MoeWeights

Losses = tuple[Tensor, Tensor]  # of the next token and of the draft, one mean per document, nats
LayerChange = Callable[[LayerWeights], LayerWeights]


def document_losses(model: Hy3Model, documents: Sequence[Sequence[int]]) -> Losses:
    """Mean cross-entropy of every document, [documents] each, over all its tokens."""
    main, draft = [], []
    for document in documents:
        ids = torch.tensor(document)
        hidden = model.forward_full(ids)
        drafted = model.draft_full(ids[1:], hidden[:-1])
        main.append(F.cross_entropy(model.logits(hidden[:-1]), ids[1:]))
        draft.append(F.cross_entropy(model.logits(drafted[:-1]), ids[2:]))
    return torch.stack(main), torch.stack(draft)


def _without_bias(layer: LayerWeights) -> LayerWeights:
    moe = layer.feed_forward
    if not isinstance(moe, MoeWeights):
        return layer
    return replace(layer, feed_forward=replace(moe, expert_bias=torch.zeros_like(moe.expert_bias)))


def _without_shared(layer: LayerWeights) -> LayerWeights:
    moe = layer.feed_forward
    if not isinstance(moe, MoeWeights):
        return layer
    return replace(layer, feed_forward=replace(moe, shared_down=torch.zeros_like(moe.shared_down)))


def _plain_q_norm(layer: LayerWeights) -> LayerWeights:
    attention = layer.attention
    return replace(layer, attention=replace(attention, q_norm=torch.ones_like(attention.q_norm)))


def _plain_k_norm(layer: LayerWeights) -> LayerWeights:
    attention = layer.attention
    return replace(layer, attention=replace(attention, k_norm=torch.ones_like(attention.k_norm)))


def _change_layers(model: Hy3Model, change: LayerChange) -> Hy3Model:
    weights = model.weights
    assert weights.mtp is not None, "hy3-tiny has an MTP layer"
    layers = tuple(map(change, weights.layers))
    mtp = replace(weights.mtp, layer=change(weights.mtp.layer))
    return Hy3Model(model.config, replace(weights, layers=layers, mtp=mtp))


def _change_mtp(model: Hy3Model, field: str) -> Hy3Model:
    mtp = model.weights.mtp
    assert mtp is not None, "hy3-tiny has an MTP layer"
    plain = replace(mtp, **{field: torch.ones_like(getattr(mtp, field))})
    return Hy3Model(model.config, replace(model.weights, mtp=plain))


RESETS: dict[str, Callable[[Hy3Model], Hy3Model]] = {
    "expert_bias": lambda model: _change_layers(model, _without_bias),
    "shared expert": lambda model: _change_layers(model, _without_shared),
    "q_norm": lambda model: _change_layers(model, _plain_q_norm),
    "k_norm": lambda model: _change_layers(model, _plain_k_norm),
    "router scaling": lambda model: Hy3Model(
        replace(model.config, router_scale=1.0), model.weights
    ),
    "enorm": lambda model: _change_mtp(model, "embed_norm"),
    "hnorm": lambda model: _change_mtp(model, "hidden_norm"),
    "final_layernorm": lambda model: _change_mtp(model, "final_norm"),
}


def measure_resets(
    model: Hy3Model, documents: Mapping[str, Sequence[Sequence[int]]]
) -> dict[str, dict[str, list[float]]]:
    """For each part and kind of document: how far its reset raises either loss, with the error.

    Differences are taken document by document, so that what the documents share drops out.
    """
    base = {kind: document_losses(model, texts) for kind, texts in documents.items()}
    found: dict[str, dict[str, list[float]]] = {}
    for name, reset in RESETS.items():
        changed = reset(model)
        found[name] = {}
        for kind, texts in documents.items():
            losses = zip(base[kind], document_losses(changed, texts), strict=True)
            for loss, (before, after) in zip(("main", "draft"), losses, strict=True):
                found[name][f"{kind}_{loss}"] = _mean_and_error(after - before)
    return found


def _mean_and_error(values: Tensor) -> list[float]:
    """Mean over documents and its standard error."""
    error = values.std() / len(values) ** 0.5
    return [round(values.mean().item(), 5), round(error.item(), 5)]
