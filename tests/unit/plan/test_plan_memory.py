"""Memory of a launch: shapes from headers, shares of ranks, and what published runs had."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hy3.checkpoint.header import encode_header
from hy3.checkpoint.index import open_checkpoint
from hy3.checkpoint.model_config import parse_config
from hy3.errors import InputError
from hy3.hardware.device import GIB, parse_hardware
from hy3.plan.footprint import (
    activation_bytes_per_token,
    captured_sizes,
    footprint,
    largest_concurrency,
    largest_context,
)
from hy3.plan.model_shape import ModelShape, decoded, shape_of
from hy3.plan.planner import make_plan
from hy3.plan.request import Request
from hy3.plan.settings import Settings
from hy3.plan.sharding import broken_rules, kv_rank_bytes, rank_bytes
from support.real_models import HY3, HY_MT2
from support.recipes import written_specs
from support.shapes import shape_in, shape_of_folder
from support.sparse import write_sparse
from support.tiny import TINY

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"


@pytest.fixture(scope="module")
def hy3(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    return shape_of_folder(write_sparse(tmp_path_factory.mktemp("hy3") / "nvfp4", HY3, packed=True))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    folder = tmp_path_factory.mktemp("mt2") / "bf16"
    return shape_of_folder(write_sparse(folder, HY_MT2, shards=8))


@pytest.fixture(scope="module")
def blocks() -> ModelShape:
    return shape_in("Hy3 in FP8 blocks", HY3, "fp8")


def test_a_recipe_is_planned_before_it_is_made(hy3: ModelShape, small: ModelShape) -> None:
    assert set(shape_in("a", HY3, "experts-nvfp4").classes) == set(hy3.classes)
    assert set(shape_in("b", HY_MT2, None).classes) == set(small.classes)


def of_class(shape: ModelShape, name: str, mtp: bool = False):
    return next(each for each in shape.classes if (each.name, each.mtp) == (name, mtp))


def test_shape_counts_parameters_and_stored_bytes(hy3: ModelShape) -> None:
    experts = of_class(hy3, "routed_expert")
    assert experts.parameters == 79 * 192 * 3 * 4096 * 1536
    # 4 bits a weight, 8 bits a group of 16, 32 bits a tensor
    assert experts.nbytes == experts.parameters * 9 // 16 + 79 * 192 * 3 * 4
    assert of_class(hy3, "routed_expert", mtp=True).parameters == 192 * 3 * 4096 * 1536
    attention = of_class(hy3, "attention")
    assert attention.parameters == 80 * 4096 * 128 * (2 * 64 + 2 * 8)
    assert attention.nbytes == 2 * attention.parameters and attention.forms == ("BF16",)
    assert hy3.nbytes == 180_826_481_152
    # The BF16 checkpoint's bytes, of which 80 layers x 192 biases are F32.
    biases = 80 * 192
    whole = (597_572_342_272 - 4 * biases) // 2 + biases
    assert sum(each.parameters for each in hy3.classes) == whole


def test_cache_of_a_token(hy3: ModelShape) -> None:
    assert hy3.kv_bytes_per_token("bf16", mtp=False) == 327_680
    assert hy3.kv_bytes_per_token("fp8", mtp=False) == 163_840
    assert hy3.kv_bytes_per_token("fp8", mtp=True) == 163_840 // 80 * 81
    # Two ranks hold half the heads; sixteen hold one of eight each, twice over.
    assert kv_rank_bytes(hy3, Settings("vllm", tensor_parallel=2, kv_dtype="fp8")) == 81_920
    assert kv_rank_bytes(hy3, Settings("vllm", tensor_parallel=16, kv_dtype="fp8")) == 20_480


def test_shares_of_ranks(hy3: ModelShape) -> None:
    two = Settings("vllm", tensor_parallel=2)
    experts, router = of_class(hy3, "routed_expert"), of_class(hy3, "router")
    assert rank_bytes(experts, hy3, two) == experts.nbytes // 2
    assert rank_bytes(router, hy3, two) == router.nbytes
    # q and o halve from TP=8 to 16, k and v do not: each of 8 heads is held by two ranks.
    attention = of_class(hy3, "attention")
    head = attention.nbytes / (2 * 64 + 2 * 8)
    sixteen = replace(two, tensor_parallel=16)
    assert rank_bytes(attention, hy3, sixteen) == round(head * (2 * 4 + 2))


def test_shares_of_stages(hy3: ModelShape) -> None:
    """80 layers in 3 stages are 27, 27 and 26; 79 have experts, and one stage has the dense one."""
    stages = Settings("vllm", pipeline_parallel=3)
    experts, dense = of_class(hy3, "routed_expert"), of_class(hy3, "dense_mlp")
    assert rank_bytes(experts, hy3, stages) == -(-experts.nbytes * 27 // 79)
    assert rank_bytes(dense, hy3, stages) == dense.nbytes
    assert kv_rank_bytes(hy3, stages) == 27 * 2 * 8 * 128 * 2
    half = Settings("vllm", tensor_parallel=2, pipeline_parallel=2)
    attention = of_class(hy3, "attention")
    assert rank_bytes(attention, hy3, half) == attention.nbytes // 4
    # Two stages capture graphs of half the layers each, and repack one layer as one stage does.
    one, two = (
        footprint(hy3, parse_hardware("gb10").device, each)
        for each in (Settings("vllm"), Settings("vllm", pipeline_parallel=2))
    )
    graphs = [next(t.nbytes for t in each.others if t.name == "graphs") for each in (one, two)]
    assert graphs[0] == 2 * graphs[1] and one.load_peak_bytes == two.load_peak_bytes


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_sizes_that_eight_kv_heads_allow(hy3: ModelShape, size: int) -> None:
    assert broken_rules(hy3, parse_hardware("8xh200"), Settings("vllm", tensor_parallel=size)) == []


def test_three_ranks_are_refused_and_the_heads_are_named(hy3: ModelShape) -> None:
    broken = broken_rules(hy3, parse_hardware("3xgb10"), Settings("vllm", tensor_parallel=3))
    assert [rule.identity for rule in broken] == ["query_heads", "kv_heads"]
    assert "8 KV heads cannot be split over TP=3" in broken[1].sentence
    assert "1, 2, 4, 8" in broken[1].sentence


def test_marlin_tiles_are_sglangs_rule_and_not_vllms(hy3: ModelShape) -> None:
    hardware = parse_hardware("2x8xh200")
    sixteen = Settings("sglang", tensor_parallel=16)
    assert [rule.identity for rule in broken_rules(hy3, hardware, sixteen)] == ["marlin_width"]
    assert "are 96" in broken_rules(hy3, hardware, sixteen)[0].sentence
    assert broken_rules(hy3, hardware, replace(sixteen, engine="vllm")) == []


@pytest.mark.parametrize(
    ("size", "whole_experts", "cut"),
    [
        # 1536 / 4 = 3 x 128, and 13312 / 8 = 13 x 128; a head is 128 wide.
        (4, False, ""),
        (8, False, "TP=8 routed_expert is 192 wide, shared_expert is 192 wide"),
        (8, True, "TP=8 shared_expert is 192 wide"),
        (16, True, "TP=16 shared_expert is 96 wide, dense_mlp is 832 wide"),
    ],
)
def test_blocks_of_fp8_are_not_cut(
    blocks: ModelShape, size: int, whole_experts: bool, cut: str
) -> None:
    settings = Settings("vllm", tensor_parallel=size, expert_parallel=whole_experts)
    broken = broken_rules(blocks, parse_hardware("2x8xh200"), settings)
    assert [rule.identity for rule in broken] == ["fp8_blocks"] * bool(cut)
    assert all(rule.sentence.endswith(f"with {cut}") for rule in broken)


def test_blocks_of_fp8_decide_the_split() -> None:
    """Hy-MT2-30B's dense layer is 6912 wide, 54 blocks: TP=2 leaves 27, TP=4 would cut one."""
    shape = shape_in("fp8", HY_MT2, "fp8")
    plan = make_plan(shape, parse_hardware("4xrtx-pro-6000"), Request(concurrency=1))
    reason = next(each.reason for each in plan.choices if each.setting == "tensor parallel")
    assert plan.settings.tensor_parallel <= 2 and "dense_mlp is 1728 wide" in reason
    # hy3's own engine decodes them, and asks nothing of blocks.
    odd = replace(shape, expert_size=100, shared_size=100)
    for engine, rules in (("vllm", ["fp8_blocks"]), ("native", [])):
        alone = make_plan(odd, parse_hardware("b300"), Request(concurrency=1, engine=engine))
        assert [rule.identity for rule in alone.broken] == rules


@pytest.mark.parametrize("variant", ["fp8", "attn-fp8", "attn-fp8+dynamic", "all-nvfp4"])
def test_headers_tell_blocks_from_rows(tmp_path: Path, variant: str) -> None:
    config = parse_config(json.loads((TINY / "config.json").read_text()))
    specs = list(written_specs(config, variant).values())
    header = encode_header(specs, {"format": "pt"})
    (tmp_path / "model.safetensors").write_bytes(header)
    os.truncate(tmp_path / "model.safetensors", len(header) + sum(s.nbytes for s in specs))
    found = shape_of(variant, open_checkpoint(tmp_path), config)
    others = {"attention", "shared_expert", "dense_mlp"}
    wanted = {"fp8": {"routed_expert", *others}, "attn-fp8+dynamic": others}
    assert {each.name for each in found.classes if each.in_blocks} == wanted.get(variant, set())


def test_other_rules(hy3: ModelShape) -> None:
    one = parse_hardware("gb10")
    two = Settings("vllm", tensor_parallel=2)
    assert [rule.identity for rule in broken_rules(hy3, one, two)] == ["devices"]
    native = Settings("native", tensor_parallel=2)
    pair = parse_hardware("2xgb10")
    assert [rule.identity for rule in broken_rules(hy3, pair, native)] == ["native_one_device"]
    for engine in ("vllm", "sglang"):
        staged = Settings(engine, pipeline_parallel=2, draft_depth=1)
        assert [rule.identity for rule in broken_rules(hy3, pair, staged)] == ["drafts_with_stages"]
        assert broken_rules(hy3, pair, replace(staged, draft_depth=0)) == []
    uneven = Settings("vllm", pipeline_parallel=5)
    machines = parse_hardware("2x4xh100")
    assert [rule.identity for rule in broken_rules(hy3, machines, uneven)] == ["ranks_per_machine"]
    many = Settings("vllm", pipeline_parallel=81)
    found = {rule.identity for rule in broken_rules(hy3, machines, many)}
    assert found == {"stages", "devices"}
    alone = Settings("native", expert_parallel=True)
    assert [rule.identity for rule in broken_rules(hy3, one, alone)] == ["native_one_device"]


def test_whole_experts_need_no_columns(hy3: ModelShape) -> None:
    """TP=16 cuts experts into 96 columns, which Marlin in SGLang refuses; 12 whole ones are fine.

    Seven of them on each of some ranks is SGLang's rule alone.
    """
    hardware = parse_hardware("2x8xh200")
    sixteen = Settings("sglang", tensor_parallel=16, expert_parallel=True)
    assert broken_rules(hy3, hardware, sixteen) == []
    odd = replace(hy3, experts=100)
    assert [rule.identity for rule in broken_rules(odd, hardware, sixteen)] == ["expert_count"]
    assert broken_rules(odd, hardware, replace(sixteen, engine="vllm")) == []


def test_utilization_comes_from_what_is_free(hy3: ModelShape) -> None:
    """0.92 of 121.69 GiB is more than the 111.4 that are free, and engines refuse it."""
    device = parse_hardware("gb10").device
    settings = Settings("vllm", tensor_parallel=2, kv_dtype="fp8", draft_depth=1, graphs=False)
    planned = footprint(hy3, device, settings)
    assert planned.utilization == 0.90
    assert 0.92 * device.visible_bytes > device.free_bytes > 0.90 * device.visible_bytes
    assert "refuses to start" in planned.utilization_reason
    less = footprint(hy3, device, settings, free_bytes=102 * GIB)
    # Less that is free lowers the share, and is not taken off a second time.
    assert less.utilization == 0.82
    assert planned.kv_bytes - less.kv_bytes == planned.budget_bytes - less.budget_bytes
    assert footprint(hy3, device, settings, 60 * GIB).kv_tokens == 0


def test_what_fits(hy3: ModelShape, small: ModelShape) -> None:
    settings = Settings("vllm", tensor_parallel=2, kv_dtype="fp8", graphs=False, concurrency=6)
    planned = footprint(hy3, parse_hardware("2xgb10").device, settings)
    context = largest_context(planned, settings, hy3.max_positions)
    assert planned.kv_tokens - 6 * 1024 < 6 * context <= planned.kv_tokens
    assert largest_context(planned, settings, 3000) == 3000
    count = largest_concurrency(planned, settings)
    assert count * settings.context <= planned.kv_tokens < (count + 1) * settings.context
    # Hy-MT2-30B in BF16 is 62 GB: no card of 24 or 32 GB holds it, one Spark does.
    alone = Settings("vllm")
    assert footprint(small, parse_hardware("rtx-4090").device, alone).kv_tokens == 0
    assert footprint(small, parse_hardware("rtx-5090").device, alone).kv_tokens == 0
    assert footprint(small, parse_hardware("gb10").device, alone).starts(alone)


def test_hy3s_own_engine_holds_the_decoded_model(hy3: ModelShape, small: ModelShape) -> None:
    """It decodes NVFP4 when it loads: 598 GB of BF16, whatever the file's size."""
    whole = make_plan(
        hy3,
        parse_hardware("b300"),
        Request(context=4096, concurrency=1, engine="native", draft_depth=1),
    )
    assert whole.memory.weight_bytes == 597_572_342_272 and not whole.fits
    assert not whole.decode.told and whole.decode.confidence.startswith("cannot tell")
    assert not any("FP8" in each.name for each in whole.alternatives)
    assert decoded(small) == small


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("num_hidden_layers", 6, "mtp_projection"),
        ("num_hidden_layers", 4, "attention"),
        ("num_experts", 17, "routed_expert"),
        ("hidden_size", 512, "attention"),
        ("vocab_size", 4096, "embedding"),
        ("num_nextn_predict_layers", 0, "attention"),
    ],
)
def test_files_of_another_model_than_the_config(
    tmp_path: Path, key: str, value: int, kind: str
) -> None:
    raw = json.loads((TINY / "config.json").read_text())
    folder = write_sparse(tmp_path / "sparse", raw, shards=2, packed=True)
    assert shape_of_folder(folder).mtp_layers == 1
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(written | {key: value}))
    with pytest.raises(InputError, match=f"weights of {kind}"):
        shape_of_folder(folder)


def test_a_checkpoint_that_lost_its_mtp_layer_drafts_nothing(tmp_path: Path) -> None:
    raw = json.loads((TINY / "config.json").read_text())
    folder = write_sparse(tmp_path / "bare", raw | {"num_nextn_predict_layers": 0}, shards=2)
    (folder / "config.json").write_text(json.dumps(raw))
    shape = shape_of_folder(folder)
    plan = make_plan(shape, parse_hardware("gb10"), Request(context=4096, concurrency=1))
    assert shape.mtp_layers == 0 and plan.settings.draft_depth == 0


def test_the_recorded_comparison_holds() -> None:
    recorded = json.loads((RESULTS / "plan_memory.json").read_text())
    assert len(recorded["weights"]) == 11 and len(recorded["kv_tokens"]) == 2
    assert all(abs(each["error"]) <= 0.03 for each in recorded["weights"])
    assert all(abs(each["error"]) <= 0.10 for each in recorded["kv_tokens"])


@pytest.mark.parametrize("device", ["cpu", "h200"])
def test_tokens_of_real_engines(device: str) -> None:
    found = json.loads((RESULTS / f"plan_kv_tokens_{device}.json").read_text())
    compared = [case["kv_tokens"] for case in found["cases"] if "kv_tokens" in case]
    assert len(compared) >= 7
    for each in compared:
        assert each["planned"] == pytest.approx(each["measured"], rel=0.02)


def test_graphs_are_counted_as_vllm_counts_them() -> None:
    """Its log: FULL=11 (largest=64) for 64 sequences, FULL=18 (largest=128) with one draft each."""
    plain = captured_sizes(Settings("vllm", concurrency=64))
    drafting = captured_sizes(Settings("vllm", concurrency=64, draft_depth=1))
    assert (len(plain), plain[-1]) == (11, 64)
    assert (len(drafting), drafting[-1]) == (18, 128)


def test_a_drafter_keeps_four_more_hidden_states(small: ModelShape) -> None:
    """128 MiB for 8192 tokens of Hy-MT2-30B: benchmarks/results/plan_kv_tokens_h200.json."""
    plain, drafting = (Settings("vllm", draft_depth=depth) for depth in (0, 1))
    more = activation_bytes_per_token(small, drafting) - activation_bytes_per_token(small, plain)
    assert 8192 * more == 128 * 2**20
