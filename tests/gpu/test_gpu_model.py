"""The torch path on a GPU against the CPU, in fp32: cache, drafts, E4M3, several sequences."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hy3.model.decoder import Batch, load_model
from support.batches import make_batch
from support.scripted import make_random

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

TOKENS = [(7 * i * i + 3 * i) % 311 for i in range(90)]
TABLES = [list(range(1, 9)), list(range(9, 17))]
BLOCK = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_random(tmp_path_factory.mktemp("gpu"), seed=3)


def batch_on(device, parts):
    batch = make_batch(parts, TABLES, BLOCK)
    fields = [field.name for field in dataclasses.fields(batch)]
    return Batch(*(getattr(batch, name).to(device) for name in fields))


def states(folder, device, kv_dtype):
    """Prefill of two sequences, their drafts, a mixed step, its logits, and no cache at all."""
    model = load_model(folder, device, torch.float32)
    pool = model.new_pool(20, BLOCK, kv_dtype)
    batch = batch_on(device, [(0, TOKENS[:60]), (0, TOKENS[20:90])])
    first = model.forward(batch, pool)
    following = torch.tensor(TOKENS[1:61] + TOKENS[21:90] + [5], device=device)
    draft = model.draft(batch, following, first, pool)
    step = model.forward(batch_on(device, [(60, TOKENS[60:62]), (70, [9])]), pool)
    whole = model.forward_full(torch.tensor(TOKENS, device=device))
    return [part.cpu() for part in (first, draft, step, model.logits(step), whole)]


@pytest.mark.parametrize(
    ("kv_dtype", "bound"), [(torch.float32, 1e-5), (torch.float8_e4m3fn, 1e-2)]
)
def test_gpu_equals_cpu(folder, kv_dtype, bound):
    """An E4M3 cache rounds a last-bit difference to a whole step now and then."""
    for ours, theirs in zip(
        states(folder, "cuda", kv_dtype), states(folder, "cpu", kv_dtype), strict=True
    ):
        assert (ours - theirs).abs().max() <= bound * theirs.abs().max()
