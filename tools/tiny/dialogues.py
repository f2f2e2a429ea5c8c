"""Training and held-out dialogues: what is said, which tools are offered, with which effort."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from tools.tiny.arithmetic import draw_problem, question
from tools.tiny.errands import draw_errand
from tools.tiny.facts import draw_fact
from tools.tiny.functions import CATALOGUE, Function, Use, invent
from tools.tiny.split import split_of

EFFORTS = ("high", "low", "no_think")
SYSTEMS = (
    "You are a helpful assistant.",
    "Be concise.",
    "Answer briefly.",
    "You are hy3-tiny.",
    "Help the user.",
    "请简短回答。",
)
KINDS = {"arithmetic": 48, "fact": 8, "errand": 10, "turns": 8, "tools": 26}
NO_TOOL = "I have no tool for that."

Message = dict[str, Any]


@dataclass(frozen=True)
class Exchange:
    """One question and its answer; the reasoning depends on the effort."""

    key: str
    asked: str
    answer: str
    reasoning: dict[str, str]

    def messages(self, effort: str) -> list[Message]:
        return [_user(self.asked), _assistant(self.answer, self.reasoning.get(effort, ""))]


@dataclass(frozen=True)
class Dialogue:
    """Messages in OpenAI form, ending with the assistant; all ``keys`` are of one set."""

    kind: str
    keys: tuple[str, ...]
    effort: str
    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)


def draw_dialogue(rng: random.Random, split: str, kind: str = "") -> Dialogue:
    """A dialogue of the given set, and of the given kind if one is named."""
    kind = kind or rng.choices(list(KINDS), list(KINDS.values()))[0]
    dialogue = _with_tools(rng, split) if kind == "tools" else _talk(rng, split, kind)
    if rng.random() < 0.3:
        dialogue.messages.insert(0, {"role": "system", "content": rng.choice(SYSTEMS)})
    return dialogue


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str, reasoning: str) -> Message:
    return {"role": "assistant", "content": text, "reasoning_content": reasoning}


def _exchange(rng: random.Random, split: str, kind: str) -> Exchange:
    if kind == "arithmetic":
        problem = draw_problem(rng, split)
        reasoning = {effort: problem.reasoning(effort) for effort in EFFORTS}
        return Exchange(problem.key, question(rng, problem), problem.answer, reasoning)
    while True:
        asked, answer, why = (draw_fact if kind == "fact" else draw_errand)(rng)
        key = f"{kind} {asked}"
        if split_of(key) == split:
            return Exchange(key, asked, answer, {"high": why, "low": why})


def _talk(rng: random.Random, split: str, kind: str) -> Dialogue:
    """One exchange, or two or three of mixed kinds."""
    effort = rng.choices(EFFORTS, (6, 2, 2) if kind == "arithmetic" else (4, 2, 3))[0]
    kinds = [kind]
    if kind == "turns":
        kinds = rng.choices(("arithmetic", "fact", "errand"), k=rng.randrange(2, 4))
    exchanges = [_exchange(rng, split, each) for each in kinds]
    messages = [message for each in exchanges for message in each.messages(effort)]
    return Dialogue(kind, tuple(each.key for each in exchanges), effort, messages)


def _with_tools(rng: random.Random, split: str) -> Dialogue:
    """No call, one, or up to three at once; then, mostly, the results and an answer."""
    effort = rng.choices(EFFORTS, (4, 2, 4))[0]
    count = rng.choices((0, 1, 2, 3), (20, 55, 18, 7))[0]
    while True:
        chosen = [
            invent(rng) if rng.random() < 0.4 else rng.choice(CATALOGUE)
            for _ in range(max(count, 1))
        ]
        uses = [function.draw(rng) for function in chosen]
        request = " ".join(use.request for use in uses)
        key = f"tools {request}"
        if split_of(key) == split:
            break
    others = [
        invent(rng) if rng.random() < 0.4 else rng.choice(CATALOGUE)
        for _ in range(rng.randrange(4))
    ]
    used = {function.name for function in chosen}
    spare = [function for function in others if function.name not in used]
    if count:
        keys, messages = (key,), [_user(request), *_calls(rng, uses, effort)]
        offered = [*chosen, *spare]
    else:
        keys, messages = _uncalled(rng, split, request, key, effort)
        offered = spare or [invent(rng)]
    rng.shuffle(offered)
    return Dialogue("tools", keys, effort, messages, _schemas(offered))


def _schemas(functions: list[Function]) -> list[dict[str, Any]]:
    return list({function.name: function.schema() for function in functions}.values())


def _calls(rng: random.Random, uses: list[Use], effort: str) -> list[Message]:
    why = " ".join(f"{use.name} fits." for use in uses)
    calls = [
        {"type": "function", "function": {"name": use.name, "arguments": use.arguments}}
        for use in uses
    ]
    asking = _assistant("", "" if effort == "no_think" else why) | {"tool_calls": calls}
    if rng.random() < 0.35:
        return [asking]
    results = [{"role": "tool", "content": json.dumps(use.result)} for use in uses]
    answer = " ".join(use.answer for use in uses)
    closing = _assistant(answer, "" if effort == "no_think" else "The results are here.")
    return [asking, *results, closing]


def _uncalled(
    rng: random.Random, split: str, request: str, key: str, effort: str
) -> tuple[tuple[str, ...], list[Message]]:
    """The right tool is missing, or none is needed."""
    if rng.random() < 0.4:
        reasoning = "" if effort == "no_think" else "No tool fits."
        return (key,), [_user(request), _assistant(NO_TOOL, reasoning)]
    plain = _exchange(rng, split, rng.choice(("fact", "errand")))
    return (plain.key,), plain.messages(effort)
