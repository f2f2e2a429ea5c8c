"""Dialogues as text, through the checkpoint's own template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tools.tiny.dialogues import Dialogue

FOLDER = Path(__file__).resolve().parents[2] / "models" / "hy3-tiny"
SUFFIX = ":opensource"
BOS, EOS = f"<｜hy_begin_of_sentence{SUFFIX}｜>", f"<｜hy_eos{SUFFIX}｜>"
USER, ASSISTANT = f"<｜hy_User{SUFFIX}｜>", f"<｜hy_Assistant{SUFFIX}｜>"


class Renderer:
    """Renders whole dialogues for training and their prompts for evaluation."""

    def __init__(self, folder: Path = FOLDER) -> None:
        environment = ImmutableSandboxedEnvironment()
        environment.globals["raise_exception"] = _raise
        environment.filters["tojson"] = _to_json
        source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        self._template = environment.from_string(source)

    def whole(self, dialogue: Dialogue) -> str:
        """The dialogue with its closing eos; earlier reasoning is as a later prompt shows it."""
        text = self._render(dialogue, dialogue.messages, generate=False)
        return text if dialogue.messages[-1].get("tool_calls") else text + EOS

    def prompt(self, dialogue: Dialogue) -> str:
        """Everything up to the answer to the last user message."""
        last = max(i for i, message in enumerate(dialogue.messages) if message["role"] == "user")
        return self._render(dialogue, dialogue.messages[: last + 1], generate=True)

    def _render(self, dialogue: Dialogue, messages: list[dict[str, Any]], generate: bool) -> str:
        return self._template.render(
            messages=messages,
            tools=dialogue.tools or None,
            reasoning_effort=dialogue.effort,
            add_generation_prompt=generate,
        )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii)
