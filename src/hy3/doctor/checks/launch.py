"""How running engines were started, and whether their own files were edited by hand."""

from __future__ import annotations

import base64
import binascii
import re

from hy3.doctor.check import Check, Finding, clean, inconclusive, not_checked, problem
from hy3.doctor.host import Host
from hy3.doctor.ports import engine_environments
from hy3.doctor.process import Process, engines

_HY3 = re.compile(r"(?i)\bhy[-_]?v?3\b|hunyuan-?v?3")
_DRAFTS = re.compile(r"--(spec-type|spec-draft-n-max|draft-max|model-draft)\b|\s-md\s")
_DRAFT_FLOOR = re.compile(r"--(spec-)?draft-p-min[ =]([\d.]+)")
_ON = ("1", "true")


def _leaders(host: Host, program: str) -> list[Process]:
    """Servers of one engine, by a word of their command lines."""
    return [each for each in engines(host.processes) if each.leads and program in each.command]


def engine_edited(host: Host) -> Finding:
    """Files about Hy3 within an engine's package, beside the hashes of its installation."""
    lines = [line for name in host.matching(r"sources( \d+)?") for line in host.lines(name)]
    if not lines:
        return not_checked("no engine is installed outside containers, and none is running")
    edited = sorted({path for path, *hashes in map(str.split, lines) if not _same(*hashes[:2])})
    if edited:
        return inconclusive(
            f"not as they were installed: {', '.join(edited)}",
            "take a version that needs no patch, and write token_suffix into the checkpoint "
            "(hy3 repair): a patch by sed misses markers, or takes another word for its own",
        )
    return clean(f"{len(lines)} files about Hy3 are as they were installed")


def _same(installed: str, now: str = "") -> bool:
    """A hash of a RECORD file (base64 without padding) beside one of sha256sum."""
    try:
        return base64.urlsafe_b64decode(f"{installed}==").hex() == now
    except binascii.Error:
        return False


def effort_unset(host: Host) -> Finding:
    """The reasoning effort of requests that name none."""
    serving = [each for each in _leaders(host, "vllm") if _HY3.search(each.command)]
    if not serving:
        return not_checked("no vLLM is running whose command names Hy3")
    for each in serving:
        if "reasoning_effort" not in each.command:
            return inconclusive(
                f"pid {each.pid} names no reasoning effort: requests without one get no reasoning, "
                "and facts go wrong more often",
                'start with --default-chat-template-kwargs \'{"reasoning_effort":"low"}\'',
            )
    return clean("requests that name no reasoning effort get one")


def drafts_of_low_confidence(host: Host) -> Finding:
    """llama.cpp verifies every draft unless it is told a least probability."""
    drafting = [each for each in _leaders(host, "llama-server") if _DRAFTS.search(each.command)]
    if not drafting:
        return not_checked("no llama-server with drafts is running")
    environments = engine_environments(host)
    for each in drafting:
        told = _DRAFT_FLOOR.search(each.command)
        environment = environments.get(each.pid, {})
        value = told[2] if told else environment.get("LLAMA_ARG_SPEC_DRAFT_P_MIN", "0")
        if not re.search("[1-9]", value):
            return problem(
                f"pid {each.pid} drafts with the default least probability of 0",
                "start with --spec-draft-p-min 0.75, and compare with no drafts at all",
            )
    return clean("drafts of low confidence are not verified")


def aiter_experts(host: Host) -> Finding:
    """ROCm's AITER with its fused experts left on."""
    if not host.lines("amd"):
        return not_checked("no AMD device here")
    environments = engine_environments(host)
    if not environments:
        return inconclusive(
            "no engine is running", "set VLLM_ROCM_USE_AITER_MOE=0 where VLLM_ROCM_USE_AITER is 1"
        )
    for pid, told in environments.items():
        aiter = told.get("VLLM_ROCM_USE_AITER", "0").lower() in _ON
        if aiter and told.get("VLLM_ROCM_USE_AITER_MOE", "1").lower() in _ON:
            return problem(
                f"pid {pid} runs AITER with its fused experts", "set VLLM_ROCM_USE_AITER_MOE=0"
            )
    return clean("no engine runs AITER's fused experts")


def attention_by_data(host: Host) -> Finding:
    """SGLang's attention in data-parallel ranks together with DeepEP."""
    serving = _leaders(host, "sglang")
    if not serving:
        return not_checked("no SGLang is running")
    for each in serving:
        words = each.command
        if _HY3.search(words) and "--enable-dp-attention" in words and "deepep" in words:
            return problem(
                f"pid {each.pid} was started with --enable-dp-attention and DeepEP",
                "leave one of them out: Hy3's attention fails in them together",
            )
    return clean("no SGLang runs data-parallel attention with DeepEP")


_RECIPES = "https://github.com/vllm-project/recipes"
CHECKS = (
    Check(
        "engine-edited",
        "wrong",
        "an engine's files about Hy3 were patched by hand",
        "https://github.com/KI-KUBE/dgxarley",
        engine_edited,
    ),
    Check(
        "effort-unset",
        "wrong",
        "requests that name no reasoning effort get no reasoning",
        "https://github.com/raullenchai/Rapid-MLX/issues/1070",
        effort_unset,
    ),
    Check(
        "drafts-of-low-confidence",
        "slows",
        "llama.cpp verifies drafts that are unlikely to be taken",
        "https://github.com/ggml-org/llama.cpp/pull/25395",
        drafts_of_low_confidence,
    ),
    Check(
        "aiter-experts",
        "stops",
        "ROCm's fused experts abort while the engine warms up",
        _RECIPES,
        aiter_experts,
    ),
    Check(
        "attention-by-data",
        "stops",
        "SGLang fails with data-parallel attention and DeepEP",
        "https://github.com/sgl-project/sglang/issues/30201",
        attention_by_data,
    ),
)
