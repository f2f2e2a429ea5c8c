"""Published rows as the planner's input: shape, hardware, settings and the measured step.

What a row says is taken as it is; what it leaves out is filled by the rules below, which look at
input columns alone. ``excluded`` names the rule that a row cannot be judged by.
"""

from __future__ import annotations

import csv
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hy3.hardware.device import Device, Hardware, load_devices
from hy3.plan.model_shape import ModelShape, WeightClass
from hy3.plan.roofline import Workload, tokens_per_step
from hy3.plan.settings import SGLANG, VLLM, Settings

DATA = Path(__file__).resolve().parent / "data"
OWN_SOURCE = "vLLM 0.26.0 on one H200, Hy3-shaped weights, uniform routing"
_DEVICE_WORDS = {
    "GB10": "gb10",
    "B300": "b300",
    "B200": "b200",
    "H200": "h200",
    "H100": "h100",
    "RTX PRO 6000": "rtx-pro-6000",
}
# The table of architectures does not say how long a context may be, and no speed depends on it.
_UNLIMITED = 2**30
# Where neither a row nor another of its source and model states an acceptance: that of depth 1 is
# the middle of what Hy3 rows state, a later draft holds in three of ten cases on Hy3 (position 2 of
# 0.2 after 0.69), as often as the first on models that were trained for depth.
_FIRST_ACCEPTANCE = 0.65
# The lowest and the highest first acceptance that anybody published for Hy3: vLLM's own test on a
# B200, and GSM8K on a B300 (https://huggingface.co/kodelow/Hy3-NVFP4-W4A16).
_ACCEPTANCE_RANGE = (0.467, 0.834)
_HY3_LATER = 0.29
_SOCKET_COLLECTIVE_S = 209e-6  # NCCL over sockets, 4 KB: https://github.com/KI-KUBE/dgxarley
_DEFAULT_CONTEXT = 1000  # tokens, where a row states no lengths


@dataclass(frozen=True)
class Row:
    """One measurement, ready to be predicted."""

    identity: str
    source: str
    shape: ModelShape
    hardware: Hardware
    settings: Settings
    workload: Workload
    stream_tok_s: float  # measured
    states_lengths: bool
    engine: str
    scenario: str  # of the source's own prompts, where it names several
    gained_range: tuple[float, float]  # tokens a step, by what can be known of the acceptance

    @property
    def step_tokens(self) -> int:
        """Verified in one step of all sequences."""
        return self.settings.concurrency * (self.settings.draft_depth + 1)

    @property
    def pair_key(self) -> tuple[Any, ...]:
        """Rows of equal keys ran the same model on the same machine, engine and prompts."""
        return (self.source, self.shape.name, self.engine, self.hardware, self.scenario)


def read_rows() -> tuple[list[Row], dict[str, str]]:
    """The rows that can be judged, and the rule that excludes each of the others."""
    architectures = tomllib.loads((DATA / "architectures.toml").read_text(encoding="utf-8"))
    rows, excluded = [], {}
    with (DATA / "measured.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    for raw in table:
        reason = exclusion(raw, architectures)
        if reason:
            excluded[raw["id"]] = reason
        else:
            rows.append(_row(raw, architectures, _stated_beside(raw, table)))
    return [*rows, *own_rows()], excluded


def exclusion(raw: dict[str, str], architectures: dict[str, Any]) -> str:
    """Why a row is not judged; a predicate on what was put in, never on what came out."""
    if not raw["concurrency"] or not (raw["tok_s_stream"] or raw["tok_s_agg"]):
        return "states no speed"
    if not raw["engine"].startswith(("vLLM", "SGLang")):
        return "neither vLLM nor SGLang"
    if raw["quality"] == "second-hand":
        return "second-hand, its build not stated"
    if raw["spec"] in ("dflash2", "dspark"):
        return "a drafter of another kind than an MTP layer"
    if not any(word in raw["hardware"] for word in _DEVICE_WORDS):
        return "hardware that is not in the table"
    if "gridbook" in raw["engine"] or "EXL3" in raw["quant"]:
        return "a format with kernels of its own"
    if _architecture(raw["model"], architectures) is None:
        return "no public architecture"
    return ""


def own_rows() -> list[Row]:
    """Decode steps measured on one H200."""
    architectures = tomllib.loads((DATA / "architectures.toml").read_text(encoding="utf-8"))
    rows = []
    with (DATA / "h200_steps.csv").open(newline="", encoding="utf-8") as file:
        for raw in csv.DictReader(file):
            name = _architecture(raw["model"], architectures)
            assert name is not None
            entry = architectures[name] | {"layers": int(raw["layers"]), "mtp": 0}
            settings = Settings(VLLM, concurrency=int(raw["batch"]), context=8192)
            rows.append(
                Row(
                    identity=f"own {name} x{raw['layers']} b{raw['batch']}",
                    source=OWN_SOURCE,
                    shape=build_shape(name, entry, routed=0.5625, others=2.0),
                    hardware=Hardware(load_devices()["h200"], 1, 1),
                    settings=settings,
                    workload=Workload(168),
                    stream_tok_s=1000 / float(raw["step_ms"]),
                    states_lengths=True,
                    engine=VLLM,
                    scenario="",
                    gained_range=(1.0, 1.0),
                )
            )
    return rows


def build_shape(
    name: str, entry: dict[str, Any], routed: float, others: float, head: float = 2.0
) -> ModelShape:
    """A shape from dimensions and bytes per parameter."""
    hidden, moe = entry["hidden"], entry["layers"] - entry["dense_layers"]

    def each(kind: str, count: int, size: float, mtp: bool = False) -> WeightClass:
        forms = ("U8",) if kind == "routed_expert" and size < 1 else ("BF16",)
        return WeightClass(kind, mtp, count, round(count * size), forms)

    layer = {
        "attention": entry["attention"],
        "shared_expert": 3 * hidden * entry["shared_size"],
        "routed_expert": 3 * hidden * entry["expert_size"] * entry["experts"],
    }
    classes = [
        each("attention", entry["layers"] * layer["attention"], others),
        each("shared_expert", moe * layer["shared_expert"], others),
        each("routed_expert", moe * layer["routed_expert"], routed),
        each("dense_mlp", entry["dense_layers"] * 3 * hidden * entry["dense_size"], others),
        each("router", moe * hidden * entry["experts"], 2.0),
        each("embedding", entry["vocab"] * hidden, 2.0),
        each("lm_head", entry["vocab"] * hidden, head),
    ]
    if entry["mtp"]:
        classes += [
            each("attention", layer["attention"], others, mtp=True),
            each("shared_expert", layer["shared_expert"], others, mtp=True),
            each("routed_expert", layer["routed_expert"], routed, mtp=True),
            each("mtp_projection", 2 * hidden * hidden, 2.0, mtp=True),
        ]
    return ModelShape(
        name=name,
        vocab_size=entry["vocab"],
        hidden_size=hidden,
        layers=entry["layers"],
        mtp_layers=entry["mtp"],
        dense_layers=entry["dense_layers"],
        heads=entry["heads"],
        kv_heads=entry["kv_heads"],
        head_dim=entry["head_dim"],
        experts=entry["experts"],
        experts_per_token=entry["per_token"],
        expert_size=entry["expert_size"],
        shared_size=entry["shared_size"],
        dense_size=entry["dense_size"],
        max_positions=_UNLIMITED,
        classes=tuple(item for item in classes if item.parameters),
    )


def bytes_per_parameter(quant: str, model: str) -> tuple[float, float]:
    """Of routed experts and of the other linears, from the quant column's words."""
    words = quant.lower()
    if "fp8 attn" in words:
        return 0.5625, 1.0
    if words.startswith("fp8"):
        return 1.0, 1.0
    # Hy3's builds quantize the experts alone unless they say otherwise.
    if "hy3" in model.lower() and ("nvfp4" in words or "int4" in words or "w4a16" in words):
        return 0.5625, 2.0
    if "mxfp4" in words:
        return 0.53125, 2.0
    return 0.5625, 0.5625


def _stated_beside(raw: dict[str, str], table: list[dict[str, str]]) -> float | None:
    """The first acceptance that other rows of the source state for the model, on average."""
    word = "Hy3" if "Hy3" in raw["model"] else raw["model"]
    found = [
        first
        for other in table
        if other["source"] == raw["source"] and word in other["model"]
        if (first := _stated_first(other)) is not None
    ]
    return sum(found) / len(found) if found else None


def _stated_first(raw: dict[str, str]) -> float | None:
    """Acceptance of the first draft, where the row says it."""
    stated = raw["acceptance"]
    if spread := re.match(r"(?:pos1 )?(0\.\d+)-(0\.\d+)", stated):
        return (float(spread[1]) + float(spread[2])) / 2
    single = re.match(r"~?(0\.\d+)", stated)
    return float(single[1]) if single else None


def _row(raw: dict[str, str], architectures: dict[str, Any], beside: float | None) -> Row:
    name = _architecture(raw["model"], architectures)
    assert name is not None
    routed, others = bytes_per_parameter(raw["quant"], raw["model"])
    shape = build_shape(name, architectures[name], routed, others)
    hardware = Hardware(_device(raw), int(raw["nodes"]), int(raw["gpus"]) // int(raw["nodes"]))
    acceptance, ends = _acceptance(raw, beside)
    settings = Settings(
        engine=SGLANG if raw["engine"].startswith("SGLang") else VLLM,
        tensor_parallel=int(raw["tp"]),
        kv_dtype="fp8" if raw["kv_dtype"].startswith("fp8") else "bf16",
        concurrency=int(raw["concurrency"]),
        draft_depth=len(acceptance),
        graphs=raw["graphs"] != "eager",
        expert_parallel="EP on" in raw["notes"] and int(raw["tp"]) > 1,
    )
    lengths = [int(raw[key]) for key in ("prompt_tokens", "output_tokens") if raw[key]]
    aggregate = float(raw["tok_s_agg"] or 0) / settings.concurrency
    return Row(
        identity=raw["id"],
        source=raw["source"],
        shape=shape,
        hardware=hardware,
        settings=settings,
        workload=Workload(sum(lengths) or _DEFAULT_CONTEXT, acceptance),
        stream_tok_s=aggregate or float(raw["tok_s_stream"]),
        states_lengths=bool(lengths),
        engine=raw["engine"],
        gained_range=(tokens_per_step(settings, ends[0]), tokens_per_step(settings, ends[1])),
        scenario=scenario[0] if (scenario := re.match(r"s\d\b", raw["notes"])) else "",
    )


def _architecture(model: str, architectures: dict[str, Any]) -> str | None:
    for name, entry in architectures.items():
        if any(word in model for word in entry["matches"]):
            return name
    return None


def _device(raw: dict[str, str]) -> Device:
    word = next(word for word in _DEVICE_WORDS if word in raw["hardware"])
    device = load_devices()[_DEVICE_WORDS[word]]
    if "SOCKET" in raw["notes"]:
        return replace(device, collective_s=_SOCKET_COLLECTIVE_S)
    return device


Acceptances = tuple[float, ...]


def _acceptance(
    raw: dict[str, str], beside: float | None
) -> tuple[Acceptances, tuple[Acceptances, Acceptances]]:
    """Conditional acceptance for each draft of the stated depth; and the least and most it may be.

    Args:
        beside: of the first draft, as other rows of the source state it
    """
    if raw["spec"] not in ("mtp", "nextn"):
        return (), ((), ())
    depth = int(raw["spec_k"] or 1)
    if length := re.match(r"accept_len (\d+\.\d+)", raw["acceptance"]):
        rates = (_rate_of_length(float(length[1]), depth),) * depth
        return rates, (rates, rates)

    def all_drafts(first: float) -> Acceptances:
        later = _HY3_LATER if "Hy3" in raw["model"] else first
        return (first, *(later,) * (depth - 1))

    first = _stated_first(raw) or beside
    if first is None:
        low, high = _ACCEPTANCE_RANGE
        return all_drafts(_FIRST_ACCEPTANCE), (all_drafts(low), all_drafts(high))
    return all_drafts(first), (all_drafts(first), all_drafts(first))


def _rate_of_length(length: float, depth: int) -> float:
    """The one conditional rate at which a step gains ``length`` tokens."""
    low, high = 0.0, 1.0
    settings = Settings(VLLM, draft_depth=depth)
    for _ in range(40):
        middle = (low + high) / 2
        if tokens_per_step(settings, (middle,) * depth) < length:
            low = middle
        else:
            high = middle
    return low
