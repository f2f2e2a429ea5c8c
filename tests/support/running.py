"""Running an engine to its end, for tests and benchmarks' short cuts."""

from __future__ import annotations

from collections.abc import Iterable

from hy3.engine.engine import Engine, EngineConfig
from hy3.engine.request import Request, SamplingParams, StepOutput
from hy3.model.decoder import Hy3Model

MAX_STEPS = 100_000


def make_engine(model: Hy3Model, **config) -> Engine:
    """An engine with room for small tests; ``config`` overrides fields of ``EngineConfig``."""
    sizes = {"num_blocks": 256, "max_context": 256, "kv_dtype": "fp32"}
    return Engine(model, EngineConfig(**sizes | config))


def run_all(engine: Engine, requests: Iterable[Request]) -> dict[str, list[StepOutput]]:
    """Step until all is done; the outputs of each request in order."""
    outputs: dict[str, list[StepOutput]] = {}
    for request in requests:
        engine.add(request)
        outputs[request.id] = []
    for _ in range(MAX_STEPS):
        if not engine.has_work():
            break
        for output in engine.step():
            outputs[output.request_id].append(output)
    engine.check_blocks()
    assert engine.stats().kv_blocks_used == 0
    return outputs


def tokens_of(outputs: dict[str, list[StepOutput]]) -> dict[str, list[int]]:
    """The token ids of each request."""
    return {
        name: [token for output in parts for token in output.token_ids]
        for name, parts in outputs.items()
    }


def complete(model: Hy3Model, prompts, params: SamplingParams, **config) -> dict[str, list[int]]:
    """Tokens of every prompt under equal parameters, by a fresh engine."""
    requests = [Request(str(i), tuple(prompt), params) for i, prompt in enumerate(prompts)]
    return tokens_of(run_all(make_engine(model, **config), requests))
