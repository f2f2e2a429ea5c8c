"""Greedy answers of a checkpoint to held-out dialogues, through hy3's own engine and parser."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.tiny.arithmetic import held_out_problems
from tools.tiny.dialogues import Dialogue, draw_dialogue
from tools.tiny.split import HELD_OUT

from hy3.chat.events import ParsedMessage
from hy3.chat.markers import Markers, find_marker_suffix
from hy3.chat.stream import ChatStream
from hy3.chat.template import ChatTemplate
from hy3.chat.tokenizer import Tokenizer
from hy3.demo.schema import complaint_about
from hy3.engine.config import EngineConfig
from hy3.engine.engine import Engine
from hy3.engine.request import Request, SamplingParams
from hy3.model.decoder import Hy3Model

MAX_CONTEXT, MAX_TOKENS, BATCH = 2048, 320, 32


@dataclass(frozen=True)
class Answers:
    """One message for each dialogue, and the drafts per position over all of them."""

    messages: list[ParsedMessage]
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]


def answer_all(
    folder: Path, model: Hy3Model, dialogues: Sequence[Dialogue], draft_depth: int = 0
) -> Answers:
    """Greedy answers to the last user message of each dialogue."""
    tokenizer, template = Tokenizer(folder), ChatTemplate(folder)
    markers = Markers(find_marker_suffix(folder) or "")
    blocks = BATCH * MAX_CONTEXT // 16
    config = EngineConfig(blocks, MAX_CONTEXT, max_requests=BATCH, draft_depth=draft_depth)
    engine = Engine(model, config)
    said: dict[str, list[int]] = {}
    for number, dialogue in enumerate(dialogues):
        prompt = tuple(tokenizer.encode(_prompt(template, dialogue)))
        engine.add(Request(str(number), prompt, SamplingParams(MAX_TOKENS, temperature=0)))
        said[str(number)] = []
    while engine.has_work():
        for output in engine.step():
            said[output.request_id] += output.token_ids
    messages = []
    for dialogue, ids in zip(dialogues, said.values(), strict=True):
        stream = ChatStream(markers, dialogue.tools, reasoning_open=dialogue.effort != "no_think")
        stream.feed(tokenizer.decode(ids))
        stream.finish("length" if len(ids) == MAX_TOKENS else "stop")
        messages.append(stream.message())
    stats = engine.stats()
    return Answers(messages, stats.drafted, stats.accepted)


def _prompt(template: ChatTemplate, dialogue: Dialogue) -> str:
    last = max(i for i, message in enumerate(dialogue.messages) if message["role"] == "user")
    return template.render(dialogue.messages[: last + 1], dialogue.tools or None, dialogue.effort)


def arithmetic_dialogues(count: int) -> list[tuple[Dialogue, str]]:
    """Held-out problems under effort high, each with its result."""
    pairs = []
    for problem in held_out_problems(count):
        message = {"role": "user", "content": f"What is {problem.text}?"}
        dialogue = Dialogue("arithmetic", (problem.key,), "high", [message])
        pairs.append((dialogue, str(problem.result)))
    return pairs


def last_number(text: str | None) -> str:
    """The closing integer of an answer, as written."""
    words = (text or "").split()
    return words[-1].rstrip(".") if words else ""


def held_out_dialogues(count: int, seed: int, calls_only: bool = False) -> list[Dialogue]:
    """Held-out dialogues of all kinds, or of those that should lead to a tool call."""
    rng = random.Random(seed)
    found: list[Dialogue] = []
    while len(found) < count:
        dialogue = draw_dialogue(rng, HELD_OUT, "tools" if calls_only else "")
        if not calls_only or expected_calls(dialogue):
            found.append(dialogue)
    return found


def expected_calls(dialogue: Dialogue) -> list[tuple[str, dict]]:
    """Name and arguments of the calls that answer the last user message."""
    last = max(i for i, message in enumerate(dialogue.messages) if message["role"] == "user")
    calls = dialogue.messages[last + 1].get("tool_calls", [])
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def calls_are_valid(message: ParsedMessage, dialogue: Dialogue) -> bool:
    """At least one call, each of an offered function with arguments of its schema."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in dialogue.tools}
    made = made_calls(message)
    return bool(made) and all(
        name in schemas and not complaint_about(arguments, schemas[name])
        for name, arguments in made
    )


def made_calls(message: ParsedMessage) -> list[tuple[str, dict]]:
    """Name and parsed arguments of the calls that were made."""
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
