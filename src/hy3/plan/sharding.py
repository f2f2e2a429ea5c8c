"""How engines split a model over ranks, and the rules that forbid a launch, each by its name."""

from __future__ import annotations

from dataclasses import dataclass

from hy3.checkpoint.forms import BLOCK_SIZE
from hy3.hardware.device import Hardware
from hy3.plan.model_shape import ROUTED, ModelShape, WeightClass
from hy3.plan.settings import NATIVE, SGLANG, VLLM, Settings

# Classes that lie in the first or the last pipeline stage; in the layers with experts.
_OF_ONE_STAGE = ("embedding", "lm_head")
_OF_EXPERTS = (ROUTED, "shared_expert", "router", "expert_bias")
# Classes of which every tensor-parallel rank holds the whole.
_WHOLE = ("norm", "router", "expert_bias", "mtp_projection", "kv_scale", "unknown")
_MARLIN_TILE_OUT, _MARLIN_TILE_IN = 64, 128
_MARLIN = "https://github.com/vllm-project/vllm, marlin_utils.py of 0.33.0"
_BLOCKS = (
    "https://github.com/vllm-project/vllm, validate_fp8_block_shape and the FP8 experts of 0.26; "
    "SGLang's validate_block_quant_shapes is the same"
)


@dataclass(frozen=True)
class Constraint:
    """A rule that the settings break."""

    identity: str
    sentence: str
    source: str


def broken_rules(shape: ModelShape, hardware: Hardware, settings: Settings) -> list[Constraint]:
    """Why the engine cannot run the model so; empty when it can."""
    return [*_position_rules(shape, settings), *broken_splits(shape, hardware, settings)]


def broken_splits(shape: ModelShape, hardware: Hardware, settings: Settings) -> list[Constraint]:
    """Those of the rules that are about the ranks."""
    return [
        *_device_rules(hardware, settings),
        *_head_rules(shape, settings),
        *_expert_rules(shape, settings),
        *_block_rules(shape, settings),
        *_pipeline_rules(shape, settings),
    ]


def rank_bytes(each: WeightClass, shape: ModelShape, settings: Settings) -> int:
    """Bytes of one class on the fullest rank."""
    parts = settings.tensor_parallel
    if each.name in _WHOLE:
        parts = 1
    nbytes = -(-each.nbytes // parts)
    if each.name == "attention" and settings.tensor_parallel > shape.kv_heads:
        nbytes = _attention_bytes(each, shape, settings.tensor_parallel)
    if each.mtp or each.name in _OF_ONE_STAGE:
        return nbytes
    layers = shape.moe_layers if each.name in _OF_EXPERTS else shape.layers
    layers = shape.dense_layers if each.name == "dense_mlp" else layers
    return -(-nbytes * min(layers, stage_layers(shape, settings)) // layers)


def stage_layers(shape: ModelShape, settings: Settings) -> int:
    """Layers of the longest pipeline stage: they are dealt out evenly, what is left one by one."""
    return -(-shape.layers // settings.pipeline_parallel)


def kv_rank_bytes(shape: ModelShape, settings: Settings) -> int:
    """Cache of one token on one rank: a rank holds at least one KV head of each layer."""
    whole = shape.kv_bytes_per_token(settings.kv_dtype, mtp=settings.draft_depth > 0)
    heads = max(1, -(-shape.kv_heads // settings.tensor_parallel))
    whole = -(-whole * heads // shape.kv_heads)
    return -(-whole * stage_layers(shape, settings) // shape.layers)


def _attention_bytes(each: WeightClass, shape: ModelShape, size: int) -> int:
    """q and o are split; k and v are held once for each KV head that a rank needs."""
    queries, keys = shape.heads, 2 * shape.kv_heads
    per_head = each.nbytes / (2 * queries + keys)
    return round(per_head * (2 * queries / size + 2))


def _position_rules(shape: ModelShape, settings: Settings) -> list[Constraint]:
    if settings.context <= shape.max_positions:
        return []
    sentence = f"the model knows {shape.max_positions} positions, a context of"
    source = "max_position_embeddings in its config.json"
    return [Constraint("positions", f"{sentence} {settings.context} is longer", source)]


def _device_rules(hardware: Hardware, settings: Settings) -> list[Constraint]:
    broken = []
    if settings.ranks > hardware.devices:
        broken.append(
            Constraint(
                "devices",
                f"{settings.ranks} ranks need as many devices; there are {hardware.devices}",
                "one rank is one process on one device",
            )
        )
    machines = hardware.used_by(settings.ranks).nodes
    if settings.ranks <= hardware.devices and settings.ranks % machines:
        broken.append(
            Constraint(
                "ranks_per_machine",
                f"{settings.ranks} ranks cannot be dealt out evenly to {machines} machines",
                "vLLM and SGLang start as many ranks on each machine",
            )
        )
    if settings.engine == NATIVE and (settings.ranks > 1 or settings.expert_parallel):
        broken.append(
            Constraint(
                "native_one_device",
                "hy3's own engine runs on one device; use vllm or sglang for several",
                "docs/architecture.md",
            )
        )
    return broken


def _head_rules(shape: ModelShape, settings: Settings) -> list[Constraint]:
    size, broken = settings.tensor_parallel, []
    if shape.heads % size:
        broken.append(
            Constraint(
                "query_heads",
                f"{shape.heads} query heads cannot be split evenly over TP={size}",
                "https://github.com/vllm-project/vllm, ModelConfig.verify_with_parallel_config",
            )
        )
    if shape.kv_heads % size and size % shape.kv_heads:
        divisors = [n for n in range(1, shape.kv_heads + 1) if shape.kv_heads % n == 0]
        broken.append(
            Constraint(
                "kv_heads",
                f"{shape.kv_heads} KV heads cannot be split over TP={size}: "
                f"TP must be one of {', '.join(map(str, divisors))} or a multiple of "
                f"{shape.kv_heads}",
                "https://github.com/tonyd2wild/Hy3-295B-NVFP4-MTP-2x-DGX-Spark",
            )
        )
    return broken


def _expert_rules(shape: ModelShape, settings: Settings) -> list[Constraint]:
    if not shape.experts:
        return []
    size = settings.tensor_parallel
    if settings.expert_parallel:
        # vLLM gives some ranks one expert more.
        if settings.engine == SGLANG and shape.experts % size:
            sentence = f"{shape.experts} experts cannot be dealt out evenly to {size} ranks"
            return [Constraint("expert_count", sentence, "SGLang 0.5.23, EPMoE")]
        return []
    width, rest = divmod(shape.expert_size, size)
    if rest:
        sentence = f"experts of width {shape.expert_size} cannot be split over TP={size}"
        return [Constraint("expert_width", sentence, "tensor parallelism splits every expert")]
    packed = any(each.name == ROUTED and "U8" in each.forms for each in shape.classes)
    if not packed:
        return []
    broken = []
    if shape.hidden_size % _MARLIN_TILE_IN:
        sentence = f"Marlin needs a hidden size in multiples of {_MARLIN_TILE_IN}"
        broken.append(Constraint("marlin_hidden", f"{sentence}, not {shape.hidden_size}", _MARLIN))
    # vLLM can pad the width of an expert to a tile, SGLang cannot.
    if settings.engine == SGLANG and width % _MARLIN_TILE_OUT:
        sentence = (
            f"Marlin needs {_MARLIN_TILE_OUT} columns of an expert at a time; "
            f"{shape.expert_size} over TP={size} are {width}"
        )
        broken.append(Constraint("marlin_width", sentence, "SGLang 0.5.23, W4A16 NVFP4 MoE"))
    return broken


def _block_rules(shape: ModelShape, settings: Settings) -> list[Constraint]:
    """A scale of a 128 x 128 block goes to one rank: a slice that ends within one has none."""
    blocked = {each.name for each in shape.classes if each.in_blocks}
    cut = [
        f"{name} is {width / parts:g} wide"
        for name, width, parts in _cuts(shape, settings)
        if name in blocked and width % (parts * BLOCK_SIZE)
    ]
    if not cut:
        return []
    sentence = (
        f"FP8 in blocks needs each rank's slice in multiples of {BLOCK_SIZE}; with "
        f"TP={settings.tensor_parallel} {', '.join(cut)}"
    )
    return [Constraint("fp8_blocks", sentence, _BLOCKS)]


def _cuts(shape: ModelShape, settings: Settings) -> list[tuple[str, int, int]]:
    """Class, width of its matrices where ranks cut them, and into how many parts."""
    size = settings.tensor_parallel
    return [
        ("attention", shape.heads * shape.head_dim, size),
        ("attention", shape.kv_heads * shape.head_dim, min(size, shape.kv_heads)),
        (ROUTED, shape.expert_size, 1 if settings.expert_parallel else size),
        ("shared_expert", shape.shared_size, size),
        ("dense_mlp", shape.dense_size, size),
    ]


def _pipeline_rules(shape: ModelShape, settings: Settings) -> list[Constraint]:
    stages, broken = settings.pipeline_parallel, []
    if stages > shape.layers:
        sentence = f"{shape.layers} layers cannot make {stages} stages"
        broken.append(Constraint("stages", sentence, "a stage holds whole layers"))
    if stages > 1 and settings.draft_depth:
        source = {
            VLLM: "https://github.com/vllm-project/vllm, hy_v3_mtp of 0.33.0",
            SGLANG: "https://github.com/sgl-project/sglang, server_args.py",
        }
        sentence = "drafts do not work across pipeline stages: use depth 0 or PP=1"
        broken.append(Constraint("drafts_with_stages", sentence, source.get(settings.engine, "-")))
    return broken
