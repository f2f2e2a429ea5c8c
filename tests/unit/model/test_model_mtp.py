"""The MTP layer against a slow reference that reads the tensors by name, and its known traps."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open

from hy3.model.decoder import load_model
from support.batches import make_batch, run_chunks
from support.scripted import make_random

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
BLOCK = 4
TABLE = [5, 0, 7, 2]


class Reference:
    """One token at a time in fp64, straight from the definition; ``traps`` plants known errors."""

    def __init__(self, folder, config, traps=()):
        self.config, self.traps, self.tensors = config, traps, {}
        for shard in folder.glob("*.safetensors"):
            with safe_open(shard, "pt") as file:
                self.tensors |= {
                    name: file.get_tensor(name).double() for name in file.offset_keys()
                }

    def norm(self, x, name):
        weight = self.tensors[name]
        return x / torch.sqrt((x * x).mean() + self.config.rms_norm_eps) * weight

    def rope(self, x, position):
        half = self.config.head_dim // 2
        out = torch.empty_like(x)
        for i in range(half):
            angle = torch.tensor(position * self.config.rope_theta ** (-i / half))
            out[i] = x[i] * angle.cos() - x[i + half] * angle.sin()
            out[i + half] = x[i + half] * angle.cos() + x[i] * angle.sin()
        return out

    def head(self, x, position, norm):
        if "norm_after_rope" in self.traps:
            return self.norm(self.rope(x, position), norm)
        return self.rope(self.norm(x, norm), position)

    def mlp(self, x, prefix):
        gate, up, down = (self.tensors[f"{prefix}.{n}_proj.weight"] for n in ("gate", "up", "down"))
        inner = gate @ x
        return down @ (inner / (1 + torch.exp(-inner)) * (up @ x))

    def moe(self, x, prefix):
        scores = 1 / (1 + torch.exp(-(self.tensors[f"{prefix}.router.gate.weight"] @ x)))
        choice = scores + self.tensors[f"{prefix}.expert_bias"]
        chosen = sorted(range(len(choice)), key=lambda e: -choice[e])[
            : self.config.experts_per_token
        ]
        total = sum(scores[e] for e in chosen)
        out = self.mlp(x, f"{prefix}.shared_mlp")
        for e in chosen:
            weight = scores[e] / total * self.config.router_scale
            out = out + weight * self.mlp(x, f"{prefix}.experts.{e}")
        return out

    def layer(self, states, index):
        """Every position of one layer; ``states`` is a list of [hidden]."""
        config, p = self.config, f"model.layers.{index}"
        group, dim = config.num_heads // config.num_kv_heads, config.head_dim
        keys, values, out = [], [], []
        for position, state in enumerate(states):
            x = self.norm(state, f"{p}.input_layernorm.weight")
            q, k, v = (
                (self.tensors[f"{p}.self_attn.{n}_proj.weight"] @ x).view(-1, dim) for n in "qkv"
            )
            keys.append([self.head(h, position, f"{p}.self_attn.k_norm.weight") for h in k])
            values.append(v)
            mixed = []
            for h in range(config.num_heads):
                query = self.head(q[h], position, f"{p}.self_attn.q_norm.weight")
                dots = torch.stack([key[h // group] @ query for key in keys]) / dim**0.5
                weights = torch.exp(dots - dots.max())
                past = torch.stack([value[h // group] for value in values])
                mixed.append(weights @ past / weights.sum())
            state = state + self.tensors[f"{p}.self_attn.o_proj.weight"] @ torch.cat(mixed)
            x = self.norm(state, f"{p}.post_attention_layernorm.weight")
            block = self.moe if index >= config.num_dense_layers else self.mlp
            out.append(state + block(x, f"{p}.mlp"))
        return out

    def trunk(self, tokens):
        """States before and after the final norm."""
        states = [self.tensors["model.embed_tokens.weight"][token] for token in tokens]
        for index in range(self.config.num_layers):
            states = self.layer(states, index)
        return states, [self.norm(state, "model.norm.weight") for state in states]

    def draft(self, next_tokens, hidden):
        """States after the MTP layer's norm; ``hidden`` of position i, token i + 1."""
        p, inputs = f"model.layers.{self.config.num_layers}", []
        for token, state in zip(next_tokens, hidden, strict=True):
            embedded = self.tensors["model.embed_tokens.weight"][token]
            left = self.norm(embedded, f"{p}.enorm.weight")
            right = self.norm(state, f"{p}.hnorm.weight")
            pair = (right, left) if "swapped" in self.traps else (left, right)
            inputs.append(self.tensors[f"{p}.eh_proj.weight"] @ torch.cat(pair))
        out = self.layer(inputs, self.config.num_layers)
        return torch.stack([self.norm(state, f"{p}.final_layernorm.weight") for state in out])

    def first_drafts(self, tokens):
        before, after = self.trunk(tokens)
        hidden = before if "pre_norm" in self.traps else after
        return self.draft(tokens[1:], hidden[:-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_random(tmp_path_factory.mktemp("mtp"), seed=5)


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def drafts(model):
    """Our first drafts: row t from the state of position t and token t + 1."""
    tokens = torch.tensor(TOKENS)
    return model.draft_full(tokens[1:], model.forward_full(tokens)[:-1])


def relative_error(drafts, expected):
    return float((drafts - expected).abs().max() / expected.abs().max())


def test_first_drafts_equal_the_reference(folder, model, drafts):
    assert relative_error(drafts, Reference(folder, model.config).first_drafts(TOKENS)) < 1e-5


@pytest.mark.parametrize("trap", ["pre_norm", "swapped", "norm_after_rope"])
def test_each_trap_changes_the_result(folder, model, drafts, trap):
    trapped = Reference(folder, model.config, traps=(trap,)).first_drafts(TOKENS)
    assert relative_error(drafts, trapped) > 0.02


def test_paged_drafts_in_chunks_equal_the_reference(model, drafts):
    pool = model.new_pool(8, BLOCK)
    hidden = run_chunks(model, pool, TOKENS, [], TABLE)
    states, past, count = [], 0, len(TOKENS) - 1
    for stop in (5, 6, count):
        batch = make_batch([(past, TOKENS[past:stop])], [TABLE], BLOCK)
        following = torch.tensor(TOKENS[past + 1 : stop + 1])
        states.append(model.draft(batch, following, hidden[past:stop], pool))
        past = stop
    torch.testing.assert_close(torch.cat(states), drafts, rtol=1e-5, atol=1e-5)


def test_second_draft_feeds_the_layer_its_own_state(folder, model, drafts):
    """Draft depth 2: position i + 1 takes the MTP state of position i and the first draft."""
    reference = Reference(folder, model.config)
    _, after = reference.trunk(TOKENS)
    first = reference.draft(TOKENS[1:], after[:-1])
    head = reference.tensors["lm_head.weight"]
    proposed = int((head @ first[-1]).argmax())
    # The reference replays the whole cache: earlier entries are those of the first pass.
    states = [*after[:-1], first[-1]]
    expected = reference.draft([*TOKENS[1:], proposed], states)[-1]

    pool = model.new_pool(8, BLOCK)
    hidden = run_chunks(model, pool, TOKENS, [], TABLE)
    count = len(TOKENS) - 1
    batch = make_batch([(0, TOKENS[:count])], [TABLE], BLOCK)
    state = model.draft(batch, torch.tensor(TOKENS[1:]), hidden[:count], pool)[-1:]
    assert int(model.logits(state).argmax()) == proposed
    batch = make_batch([(count, TOKENS[count:])], [TABLE], BLOCK)
    second = model.draft(batch, torch.tensor([proposed]), state, pool)[0]
    assert relative_error(second, expected) < 1e-5
