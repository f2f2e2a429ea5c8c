"""The command that starts one rank's engine as a plan says, and the environment that it needs.

Flags are those of vLLM 0.33 and SGLang 0.5.23. Nodes start without Ray: each gets its rank.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from hy3.errors import InputError
from hy3.hardware.device import Hardware
from hy3.plan.settings import NATIVE, SGLANG, Settings

MASTER_PORT = 29500


@dataclass(frozen=True)
class Launch:
    """What the exports need beside the plan."""

    model: str  # path of the checkpoint, the same on every node
    host: str  # the address that the API listens on
    port: int
    nodes: tuple[str, ...] = ()  # fabric addresses, the first leads; empty on one machine


def engine_command(
    settings: Settings, hardware: Hardware, utilization: float, launch: Launch, rank: int
) -> list[str]:
    """Arguments of the engine on node ``rank``."""
    spread = settings.ranks > hardware.per_node
    _check_addresses(launch.nodes, hardware.used_by(settings.ranks).nodes)
    if settings.engine == NATIVE:
        return _native(settings, launch)
    if settings.engine == SGLANG:
        return _sglang(settings, utilization, launch, rank, spread)
    return _vllm(settings, hardware, utilization, launch, rank, spread)


def _check_addresses(addresses: tuple[str, ...], machines: int) -> None:
    """One for each machine that is used; a single machine needs none."""
    if len(addresses) == machines or (machines == 1 and not addresses):
        return
    if machines == 1:
        message = f"one machine is used, {len(addresses)} addresses are given"
        hint = "leave --nodes out, or take the others in with --hardware and --tp"
    else:
        message = f"{machines} machines need as many addresses, {len(addresses)} are given"
        hint = "name them on the fabric, the leader first: --nodes 192.168.100.10,192.168.100.11"
    raise InputError(message, hint=hint, where="--nodes")


def environment(
    settings: Settings, hardware: Hardware, launch: Launch, rank: int
) -> dict[str, str]:
    """Variables of node ``rank``; each has its reason in docs/planning.md."""
    found: dict[str, str] = {}
    if settings.engine == NATIVE:
        return found
    if settings.engine != SGLANG:
        # Autotuning of FP4 kernels alone has taken 14 minutes; vLLM gives up after 10.
        found |= {"VLLM_ENGINE_READY_TIMEOUT_S": "3600"}
    if hardware.device.unified:
        found |= {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    if settings.ranks > hardware.per_node:
        found |= {
            "VLLM_HOST_IP": launch.nodes[rank],
            "NCCL_NET": "IB",
            "NCCL_IB_DISABLE": "0",
            "NCCL_IB_ADDR_FAMILY": "AF_INET",
            "NCCL_IB_ROCE_VERSION_NUM": "2",
            "NCCL_IGNORE_CPU_AFFINITY": "1",
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1800",
        }
    return found


def _vllm(
    settings: Settings,
    hardware: Hardware,
    utilization: float,
    launch: Launch,
    rank: int,
    spread: bool,
) -> list[str]:
    command = ["vllm", "serve", launch.model, "--host", launch.host, "--port", str(launch.port)]
    command += ["--tensor-parallel-size", str(settings.tensor_parallel)]
    if settings.pipeline_parallel > 1:
        command += ["--pipeline-parallel-size", str(settings.pipeline_parallel)]
    if settings.expert_parallel:
        command += ["--enable-expert-parallel"]
    command += ["--max-model-len", str(settings.context)]
    command += ["--max-num-seqs", str(settings.concurrency)]
    command += ["--max-num-batched-tokens", str(settings.batched_tokens)]
    command += ["--gpu-memory-utilization", f"{utilization:.2f}"]
    # "auto" would turn to FP8 silently where the checkpoint names a KV scheme.
    command += ["--kv-cache-dtype", "fp8_e4m3" if settings.kv_dtype == "fp8" else "bfloat16"]
    if hardware.device.unified:
        command += ["--moe-backend", "marlin"]
    if not settings.graphs:
        command += ["--enforce-eager"]
    if settings.draft_depth:
        drafts = {"method": "mtp", "num_speculative_tokens": settings.draft_depth}
        command += ["--speculative-config", json.dumps(drafts, separators=(",", ":"))]
    command += ["--tool-call-parser", "hy_v3", "--reasoning-parser", "hy_v3"]
    command += ["--enable-auto-tool-choice"]
    # The template's own default is no reasoning, and facts go wrong without any.
    command += ["--default-chat-template-kwargs", '{"reasoning_effort":"low"}']
    if spread:
        command += ["--distributed-executor-backend", "mp", "--nnodes", str(len(launch.nodes))]
        command += ["--node-rank", str(rank), "--master-addr", launch.nodes[0]]
        command += ["--master-port", str(MASTER_PORT)]
        command += ["--headless"] if rank else []
    return command


def _sglang(
    settings: Settings, utilization: float, launch: Launch, rank: int, spread: bool
) -> list[str]:
    command = ["python3", "-m", "sglang.launch_server", "--model-path", launch.model]
    command += ["--host", launch.host, "--port", str(launch.port), "--dtype", "bfloat16"]
    command += ["--tp", str(settings.tensor_parallel)]
    if settings.pipeline_parallel > 1:
        command += ["--pp-size", str(settings.pipeline_parallel)]
    if settings.expert_parallel:
        command += ["--ep-size", str(settings.tensor_parallel)]
    command += ["--context-length", str(settings.context)]
    command += ["--max-running-requests", str(settings.concurrency)]
    command += ["--mem-fraction-static", f"{utilization:.2f}"]
    command += ["--kv-cache-dtype", "fp8_e4m3" if settings.kv_dtype == "fp8" else "auto"]
    if not settings.graphs:
        command += ["--disable-cuda-graph"]
    if settings.draft_depth:
        depth = settings.draft_depth
        command += ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", str(depth)]
        command += ["--speculative-eagle-topk", "1"]
        command += ["--speculative-num-draft-tokens", str(depth + 1)]
    command += ["--tool-call-parser", "hunyuan", "--reasoning-parser", "hunyuan"]
    if spread:
        command += ["--nnodes", str(len(launch.nodes)), "--node-rank", str(rank)]
        command += ["--dist-init-addr", f"{launch.nodes[0]}:{MASTER_PORT}"]
    return command


def _native(settings: Settings, launch: Launch) -> list[str]:
    command = ["hy3", "serve", launch.model, "--host", launch.host, "--port", str(launch.port)]
    command += ["--max-context", str(settings.context)]
    command += ["--max-requests", str(settings.concurrency)]
    command += ["--drafts", str(settings.draft_depth), "--kv-dtype", settings.kv_dtype]
    return command
