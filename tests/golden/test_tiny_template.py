"""hy3-tiny's chat template against the protocol's golden strings and quirks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from support.tiny import TINY

TEMPLATE = TINY / "chat_template.jinja"
S = ":opensource"
BOS, EOS = f"<｜hy_begin_of_sentence{S}｜>", f"<｜hy_eos{S}｜>"
USER, ASSISTANT, MODE = f"<｜hy_User{S}｜>", f"<｜hy_Assistant{S}｜>", f"<｜reasoning_mode{S}｜>"
THINK, THINK_END = f"<think{S}>", f"</think{S}>"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "x\n<y>"}}}
CALL_TEXT = (
    f"<tool_calls{S}>\n<tool_call{S}>add<tool_sep{S}>\n"
    f"<arg_key{S}>a</arg_key{S}>\n<arg_value{S}>1</arg_value{S}>\n"
    f"<arg_key{S}>b</arg_key{S}>\n<arg_value{S}>x\n<y></arg_value{S}>\n"
    f"</tool_call{S}>\n</tool_calls{S}>{EOS}"
)


def render(messages: list[dict[str, Any]], **variables: Any) -> str:
    def fail(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = fail
    environment.filters["tojson"] = tojson
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(messages=messages, **({"add_generation_prompt": True} | variables))


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def response(text: str, first: bool = True) -> str:
    opening = f"<tool_responses{S}>\n" if first else ""
    return f"{opening}<tool_response{S}>\n{text}\n</tool_response{S}>\n"


def test_golden_strings() -> None:
    hi = f"{BOS}{MODE}reasoning_effort:no_think{USER}Hi{ASSISTANT}{THINK}{THINK_END}"
    assert render([user("Hi")]) == hi
    assert render([user("Hi")], reasoning_effort="no_think") == hi
    assert render([user("Hi")], reasoning_effort=None) == hi
    assert render([user("Hi")], reasoning_effort="high") == (
        f"{BOS}{MODE}reasoning_effort:high{USER}Hi{ASSISTANT}{THINK}"
    )
    system = {"role": "system", "content": "Be concise."}
    assert render([system, user("Hello")]) == (
        f"{BOS}Be concise.{MODE}reasoning_effort:no_think{USER}Hello{ASSISTANT}{THINK}{THINK_END}"
    )


def test_unknown_effort_and_role_raise() -> None:
    with pytest.raises(TemplateError, match="medium"):
        render([user("Hi")], reasoning_effort="medium")
    with pytest.raises(TemplateError, match="critic"):
        render([{"role": "critic", "content": "no"}])


def test_content_is_never_trimmed_and_parts_are_joined() -> None:
    assert f"{USER}  a \n{ASSISTANT}" in render([user("  a \n")])
    parts = ["x", {"type": "text", "text": " y "}, {"type": "image_url", "image_url": "u"}]
    assert f"{USER}x y {ASSISTANT}" in render([user(parts)])


def test_system_messages_are_joined_in_front() -> None:
    messages = [user("q"), {"role": "system", "content": "A"}, {"role": "system", "content": "B"}]
    assert render(messages).startswith(f"{BOS}AB{MODE}")


def test_old_reasoning_is_dropped_unless_preserved() -> None:
    messages = [user("a"), assistant("b", reasoning_content="why"), user("c")]
    dropped = f"{ASSISTANT}{THINK}{THINK_END}b{EOS}{USER}c"
    kept = f"{ASSISTANT}{THINK}why{THINK_END}b{EOS}{USER}c"
    assert dropped in render(messages)
    assert kept in render(messages, preserved_thinking=True)
    assert kept in render(messages, tools=[TOOL])
    assert dropped in render(messages, tools=[TOOL], preserved_thinking=False)
    assert kept in render(messages, is_training=True)
    messages[1] = assistant("b", reasoning="why")
    assert kept in render(messages, tools=[TOOL])


def test_a_closing_assistant_message_is_left_open() -> None:
    messages = [user("a"), assistant("b", reasoning_content="why")]
    prompt = f"{BOS}{MODE}reasoning_effort:no_think{USER}a{ASSISTANT}"
    assert render(messages) == f"{prompt}{THINK}why{THINK_END}b"
    assert render(messages, is_training=True) == f"{prompt}{THINK}why{THINK_END}b{EOS}"
    assert render(messages, raw_last_assistant=True) == f"{prompt}b"


def test_tool_block_calls_and_responses() -> None:
    messages = [user("q"), assistant(None, tool_calls=[CALL]), {"role": "tool", "content": "3"}]
    text = render([{"role": "system", "content": "Sys"}, *messages], tools=[TOOL])
    head, _, rest = text.partition(f"{MODE}reasoning_effort:no_think")
    assert head.startswith(f"{BOS}Sys\n\n# ")
    assert f"<tools>\n{json.dumps(TOOL)}\n</tools>\n" in head
    assert f"<tool_call{S}>{{function-name}}<tool_sep{S}>" in head
    assert rest == (
        f"{USER}q{ASSISTANT}{THINK}{THINK_END}{CALL_TEXT}"
        f"{response('3')}</tool_responses{S}>{ASSISTANT}{THINK}{THINK_END}"
    )
    assert render(messages, tools=[TOOL]).startswith(f"{BOS}# ")


def test_tool_responses_open_once_per_calling_assistant() -> None:
    calling, result = assistant("", tool_calls=[CALL]), {"role": "tool", "content": "r"}
    opened = render([user("q"), calling, result, result, calling, result])
    assert opened.count(f"<tool_responses{S}>\n") == 2
    # A plain assistant message does not reopen the group: a quirk of the protocol, kept.
    unopened = render([user("q"), calling, result, assistant("ok"), result])
    assert unopened.count(f"<tool_responses{S}>\n") == 1
    assert unopened.endswith(
        f"ok{EOS}{response('r', first=False)}</tool_responses{S}>{ASSISTANT}{THINK}{THINK_END}"
    )


def test_retry_strategy_forces_high_and_no_prompt() -> None:
    text = render([user("q")], fallback_strategy="reasoning_toolcall_retry")
    assert text == f"{BOS}{MODE}reasoning_effort:high{USER}q"


def test_arguments_as_text_are_refused() -> None:
    call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    with pytest.raises(TemplateError, match="parse the JSON"):
        render([user("q"), assistant("", tool_calls=[call])])


def test_transformers_renders_the_same(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from support.scripted import make_random

    tokenizer = AutoTokenizer.from_pretrained(make_random(tmp_path / "m"))
    messages = [user("q 你好"), assistant("", tool_calls=[CALL]), {"role": "tool", "content": "é"}]
    text = tokenizer.apply_chat_template(
        messages, tools=[TOOL], tokenize=False, add_generation_prompt=True, reasoning_effort="low"
    )
    assert text == render(messages, tools=[TOOL], reasoning_effort="low")
