"""How engines were started, and files that were edited: planted command lines and packages."""

from __future__ import annotations

import base64
import hashlib

import pytest

from hy3.doctor.checks import launch
from support.planted_host import PlantedHost

CHECKS = {check.id: check for check in launch.CHECKS}
PACKAGES = "usr/local/lib/python3.12/dist-packages"
LOW = '--default-chat-template-kwargs {"reasoning_effort":"low"}'
DP = "--enable-dp-attention --moe-a2a-backend deepep"


@pytest.fixture
def planted(tmp_path):
    return PlantedHost(tmp_path)


def verdict(planted: PlantedHost, identity: str) -> tuple[str, str]:
    finding = CHECKS[identity].run(planted.gather())
    return finding.verdict, finding.evidence


def serve(planted: PlantedHost, command: str, environ: str = "") -> None:
    planted.process(200, command.split()[0], command, environ=environ)


def install(planted: PlantedHost, engine: str, path: str, text: str) -> None:
    """A package as pip leaves it: the file, and its hash in RECORD."""
    planted.file(f"{PACKAGES}/{path}", text)
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    planted.file(f"{PACKAGES}/{engine}.dist-info/RECORD", f"{path},sha256={digest},{len(text)}\n")


@pytest.mark.parametrize("identity", CHECKS)
def test_nothing_to_look_at(planted, identity):
    assert verdict(planted, identity)[0] == "NOT CHECKED"


@pytest.mark.parametrize(
    ("engine", "path"),
    [
        ("vllm-0.33.0", "vllm/reasoning/hy_v3_reasoning_parser.py"),
        ("sglang-0.5.23", "sglang/srt/models/hunyuan_v3.py"),
    ],
)
def test_edited_files(planted, engine, path):
    install(planted, engine, path, "self.suffix = init_kwargs['token_suffix']\n")
    assert verdict(planted, "engine-edited")[0] == "CLEAN"
    planted.file(f"{PACKAGES}/{path}", "self.suffix = ':opensource'\n")
    found, evidence = verdict(planted, "engine-edited")
    assert (found, path in evidence) == ("INCONCLUSIVE", True)
    (planted.root / PACKAGES / path).unlink()
    assert verdict(planted, "engine-edited")[0] == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("identity", "command", "environ", "expected"),
    [
        ("effort-unset", "vllm serve /models/Hy3-NVFP4", "", "INCONCLUSIVE"),
        ("effort-unset", f"vllm serve /models/Hy3-NVFP4 {LOW}", "", "CLEAN"),
        ("effort-unset", "vllm serve /models/qwen", "", "NOT CHECKED"),
        ("drafts-of-low-confidence", "llama-server -m x -md y", "", "PROBLEM"),
        ("drafts-of-low-confidence", "llama-server -m x --spec-type draft-mtp", "", "PROBLEM"),
        ("drafts-of-low-confidence", "llama-server -md y --draft-p-min 0.00", "", "PROBLEM"),
        ("drafts-of-low-confidence", "llama-server -md y --spec-draft-p-min 0.75", "", "CLEAN"),
        (
            "drafts-of-low-confidence",
            "llama-server -m x -md y",
            "LLAMA_ARG_SPEC_DRAFT_P_MIN=0.75\0",
            "CLEAN",
        ),
        ("drafts-of-low-confidence", "llama-server -m x", "", "NOT CHECKED"),
        ("attention-by-data", f"sglang serve --model-path Hy3 {DP}", "", "PROBLEM"),
        ("attention-by-data", "sglang serve --model-path Hy3 --tp 8", "", "CLEAN"),
        ("attention-by-data", f"sglang serve --model-path deepseek {DP}", "", "CLEAN"),
    ],
)
def test_command_lines(planted, identity, command, environ, expected):
    serve(planted, command, environ)
    assert verdict(planted, identity)[0] == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (None, "INCONCLUSIVE"),
        ("", "CLEAN"),
        ("VLLM_ROCM_USE_AITER=1\0", "PROBLEM"),
        ("VLLM_ROCM_USE_AITER=1\0VLLM_ROCM_USE_AITER_MOE=0\0", "CLEAN"),
    ],
)
def test_fused_experts_of_rocm(planted, environ, expected):
    planted.file("dev/kfd", "")
    if environ is not None:
        serve(planted, "vllm serve /models/hy3", environ)
    assert verdict(planted, "aiter-experts")[0] == expected
