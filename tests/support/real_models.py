"""The configurations of published models, for tests of sizes, names and plans."""

from __future__ import annotations

from typing import Any

HY3: dict[str, Any] = {
    "architectures": ["HYV3ForCausalLM"],
    "model_type": "hy_v3",
    "vocab_size": 120832,
    "hidden_size": 4096,
    "intermediate_size": 13312,
    "num_hidden_layers": 80,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "qk_norm": True,
    "rms_norm_eps": 1e-05,
    "max_position_embeddings": 262144,
    "rope_parameters": {"rope_theta": 11158840.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "first_k_dense_replace": 1,
    "num_experts": 192,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "expert_hidden_dim": 1536,
    "moe_intermediate_size": 1536,
    "route_norm": True,
    "router_scaling_factor": 2.826,
    "enable_lm_head_fp32": True,
    "bos_token_id": 120000,
    "eos_token_id": 120025,
    "pad_token_id": 120002,
}

HY_MT2: dict[str, Any] = {
    **{key: value for key, value in HY3.items() if key != "num_nextn_predict_layers"},
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "intermediate_size": 6912,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "expert_hidden_dim": 768,
    "moe_intermediate_size": 768,
}
