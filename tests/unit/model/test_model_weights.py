"""Loading: layouts, NVFP4 against its dequantized twin, and checkpoints that do not fit."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from hy3.errors import InputError
from hy3.model.decoder import load_model
from hy3.nvfp4.scales import tensor_scale
from hy3.nvfp4.tensor import quantize
from support.scripted import make_random

TOKENS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])


def rewrite(source, target, change):
    """A copy of ``source`` in one shard, its tensors passed through ``change(dict)``."""
    target.mkdir()
    tensors = {}
    for shard in sorted(source.glob("*.safetensors")):
        tensors |= load_file(shard)
    save_file(change(tensors), target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text((source / "config.json").read_text())
    return target


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_random(tmp_path_factory.mktemp("weights") / "source", seed=11)


def pack(tensors):
    """NVFP4 experts as compressed-tensors stores them, gate and up under one scale."""
    packed = {}
    for name, weight in tensors.items():
        if ".experts." not in name:
            packed[name] = weight
            continue
        partner = name.replace("gate_proj", "up_proj") if "gate_proj" in name else name
        partner = name.replace("up_proj", "gate_proj") if "up_proj" in name else partner
        amax = max(float(weight.abs().max()), float(tensors[partner].abs().max()))
        coded, base = quantize(weight, tensor_scale(amax), "max"), name.removesuffix(".weight")
        packed[f"{base}.weight_packed"] = coded.packed
        packed[f"{base}.weight_scale"] = coded.scales.view(torch.float8_e4m3fn)
        packed[f"{base}.weight_global_scale"] = torch.tensor([coded.divisor])
        packed[f"{base}.plain"] = coded.dequantize(torch.bfloat16)
    return packed


def test_nvfp4_equals_its_dequantized_twin_bit_for_bit(source, tmp_path):
    def only_packed(tensors):
        return {name: t for name, t in pack(tensors).items() if not name.endswith(".plain")}

    def only_plain(tensors):
        kept = {n: t for n, t in pack(tensors).items() if ".weight_" not in n}
        return {name.replace(".plain", ".weight"): t for name, t in kept.items()}

    packed = load_model(rewrite(source, tmp_path / "packed", only_packed))
    plain = load_model(rewrite(source, tmp_path / "plain", only_plain))
    original = load_model(source)
    experts = packed.weights.layers[1].feed_forward
    assert torch.equal(experts.gate_up, plain.weights.layers[1].feed_forward.gate_up)
    assert not torch.equal(experts.gate_up, original.weights.layers[1].feed_forward.gate_up)
    states = packed.forward_full(TOKENS)
    assert torch.equal(states, plain.forward_full(TOKENS))
    following = TOKENS[1:]
    drafts = packed.draft_full(following, states[:-1])
    assert torch.equal(drafts, plain.draft_full(following, states[:-1]))


def test_layout_and_dtypes(source):
    config = load_model(source).config
    for dtype in (torch.bfloat16, torch.float32):
        weights = load_model(source, dtype=dtype).weights
        moe = weights.layers[1].feed_forward
        assert weights.head.dtype == moe.gate_up.dtype == moe.router.dtype == dtype
        assert moe.expert_bias.dtype == torch.float32
        assert moe.gate_up.shape == (config.num_experts, 2 * config.expert_size, 64)
    tensors = {}
    for shard in source.glob("*.safetensors"):
        tensors |= load_file(shard)
    prefix = "model.layers.1.mlp.experts.3"
    assert torch.equal(moe.gate_up[3, 32:], tensors[f"{prefix}.up_proj.weight"].float())
    assert torch.equal(moe.down[3], tensors[f"{prefix}.down_proj.weight"].float())
    assert torch.equal(
        weights.layers[0].attention.qkv[128:192],
        tensors["model.layers.0.self_attn.k_proj.weight"].float(),
    )


def test_kv_scales_reach_the_pool(source, tmp_path):
    def scaled(tensors):
        tensors["model.layers.1.self_attn.k_scale"] = torch.tensor([0.25])
        tensors["model.layers.3.self_attn.v_scale"] = torch.tensor([4.0])
        return tensors

    model = load_model(rewrite(source, tmp_path / "scaled", scaled))
    pool = model.new_pool(2, 16, torch.float8_e4m3fn)
    assert pool.scales == ((1.0, 1.0), (0.25, 1.0), (1.0, 1.0), (1.0, 4.0))


def test_model_without_mtp_layer(tmp_path):
    model = load_model(make_random(tmp_path / "bare", num_nextn_predict_layers=0))
    assert model.weights.mtp is None
    assert len(model.new_pool(2, 16).keys) == model.config.num_layers
    assert model.logits(model.forward_full(TOKENS)).isfinite().all()


def test_missing_tensor_is_named(source, tmp_path):
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    folder = rewrite(
        source, tmp_path / "less", lambda all_: {n: t for n, t in all_.items() if n != name}
    )
    with pytest.raises(InputError, match=name):
        load_model(folder)


def test_misshapen_tensors_are_refused(source, tmp_path):
    def transposed(tensors):
        tensors["lm_head.weight"] = tensors["lm_head.weight"].T.contiguous()
        return tensors

    with pytest.raises(InputError, match=r"lm_head.weight: has shape \[64, \d+\]"):
        load_model(rewrite(source, tmp_path / "transposed", transposed))

    folder = rewrite(source, tmp_path / "config", dict)
    config = json.loads((folder / "config.json").read_text())
    config["num_key_value_heads"] = 4
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"v_proj.weight: has shape"):
        load_model(folder)


def test_foreign_dtype_is_refused(source, tmp_path):
    def halved(tensors):
        tensors["model.norm.weight"] = tensors["model.norm.weight"].half()
        return tensors

    with pytest.raises(InputError, match=r"model.norm.weight: has dtype F16"):
        load_model(rewrite(source, tmp_path / "half", halved))
