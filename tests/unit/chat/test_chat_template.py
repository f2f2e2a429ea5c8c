"""The sandboxed renderer: golden prompts, efforts, message forms, and every refusal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hy3.chat.template import ChatTemplate, map_effort, resolve_effort
from hy3.errors import InputError
from support.tiny import TINY

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "chat_template_suffixed.jinja"
TEMPLATE = TINY / "chat_template.jinja"
S = ":opensource"
BOS, MODE = f"<｜hy_begin_of_sentence{S}｜>", f"<｜reasoning_mode{S}｜>"
USER, ASSISTANT = f"<｜hy_User{S}｜>", f"<｜hy_Assistant{S}｜>"


@pytest.fixture(name="template")
def _template(tmp_path: Path) -> ChatTemplate:
    shutil.copy(GOLDEN, tmp_path / "chat_template.jinja")
    return ChatTemplate(tmp_path)


def from_source(folder: Path, source: str, **config: object) -> ChatTemplate:
    (folder / "chat_template.jinja").write_text(source, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return ChatTemplate(folder)


@pytest.mark.parametrize(
    ("messages", "effort", "expected"),
    [
        (
            [{"role": "user", "content": "Hi"}],
            "no_think",
            f"{BOS}{MODE}reasoning_effort:no_think{USER}Hi{ASSISTANT}<think{S}></think{S}>",
        ),
        (
            [
                {"role": "system", "content": "Be concise."},
                {"role": "user", "content": "Hello"},
            ],
            "no_think",
            f"{BOS}Be concise.{MODE}reasoning_effort:no_think{USER}Hello"
            f"{ASSISTANT}<think{S}></think{S}>",
        ),
        (
            [{"role": "user", "content": " Hi\n"}],
            "high",
            f"{BOS}{MODE}reasoning_effort:high{USER} Hi\n{ASSISTANT}<think{S}>",
        ),
    ],
)
def test_golden_prompts(
    template: ChatTemplate, messages: list[dict[str, str]], effort: str, expected: str
) -> None:
    assert template.render(messages, None, effort) == expected


def test_no_effort_leaves_the_choice_to_the_template(template: ChatTemplate) -> None:
    assert template.render([{"role": "user", "content": "Hi"}]).endswith(f"</think{S}>")


def test_tool_round_trip(template: ChatTemplate) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": "x\\n<b>", "n": [1, "é"]}'}}
    prompt = template.render(
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "why"},
            {"role": "tool", "content": "42", "tool_call_id": "1"},
        ],
        [{"type": "function", "function": {"name": "f", "description": "a < b & 'c'"}}],
        "low",
    )
    assert "a < b & 'c'" in prompt  # JSON, not HTML
    assert prompt.endswith(
        f"<think{S}>why</think{S}><tool_calls{S}>\n<tool_call{S}>f<tool_sep{S}>\n"
        f"<arg_key{S}>a</arg_key{S}>\n<arg_value{S}>x\n<b></arg_value{S}>\n"
        f'<arg_key{S}>n</arg_key{S}>\n<arg_value{S}>[1, "é"]</arg_value{S}>\n'
        f"</tool_call{S}>\n</tool_calls{S}><｜hy_eos{S}｜>"
        f"<tool_responses{S}>\n<tool_response{S}>\n42\n</tool_response{S}>\n</tool_responses{S}>"
        f"{ASSISTANT}<think{S}>"
    )


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_both_names_of_reasoning(tmp_path: Path, key: str) -> None:
    source = "{{ messages[0].reasoning }}|{{ messages[0].reasoning_content }}"
    template = from_source(tmp_path, source)
    assert template.render([{"role": "assistant", "content": "", key: "r"}]) == "r|r"


def test_content_parts_are_joined_and_roles_unified(tmp_path: Path) -> None:
    template = from_source(tmp_path, "{{ messages[0].role }}:{{ messages[0].content }}")
    parts = ["a", {"type": "text", "text": " b"}]
    assert template.render([{"role": "developer", "content": parts}]) == "system:a b"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("none", "no_think"),
        ("no_think", "no_think"),
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "high"),
        ("high", "high"),
        ("xhigh", "high"),
        ("max", "high"),
    ],
)
def test_effort_mapping(value: str, expected: str) -> None:
    assert map_effort(value) == expected


@pytest.mark.parametrize("value", ["", "HIGH", "ultra", 3, ["low"], None])
def test_unknown_effort_lists_the_known(value: object) -> None:
    with pytest.raises(InputError) as caught:
        map_effort(value)
    assert "none, no_think, minimal, low, medium, high, xhigh, max" in caught.value.hint


def test_effort_precedence() -> None:
    assert resolve_effort("low", {"reasoning_effort": "high", "x": 1}, None) == ("low", {"x": 1})
    assert resolve_effort(None, {"reasoning_effort": "medium"}, "low") == ("high", {})
    assert resolve_effort(None, None, "low") == ("low", {})
    assert resolve_effort(None, {}, None) == (None, {})
    with pytest.raises(InputError, match="messages cannot be set here"):
        resolve_effort(None, {"messages": []}, None)


def test_environment_is_the_one_templates_expect(tmp_path: Path) -> None:
    source = (
        "{% if true %}\n"
        "  {% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}\n"
        "{% endif %}\n"
        "{{ '<{}>'.format('é') }}{{ {'a': '<é>'} | tojson }}{{ [1] | tojson(indent=1) }}"
        "{{ bos_token }}{{ eos_token }}{{ strftime_now('%Y') | length }}{{ extra }}"
        "{% generation %}g{% endgeneration %}"
    )
    template = from_source(tmp_path, source, bos_token="<s>", eos_token={"content": "</s>"})
    prompt = template.render([{"role": "user", "content": ""}], extra="!")
    assert prompt == '01<é>{"a": "<é>"}[\n 1\n]<s></s>4!g'


@pytest.mark.parametrize("path", [GOLDEN, TEMPLATE], ids=["golden", "hy3-tiny"])
def test_same_as_transformers(tmp_path: Path, path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    template = from_source(tmp_path, source)
    utils = pytest.importorskip(
        "transformers.utils.chat_template_utils", reason="transformers is not installed"
    )
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"é": ["<", 1.5]}}}]
    call = {"function": {"name": "f", "arguments": {"q": {"é": None}, "t": "x"}}}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [call]},
        {"role": "tool", "content": "t"},
        {"role": "user", "content": "again"},
    ]
    rendered, _ = utils.render_jinja_template(
        [messages],
        tools=tools,
        chat_template=source,
        add_generation_prompt=True,
        reasoning_effort="low",
    )
    assert template.render(messages, tools, "low") == rendered[0]


def test_template_in_tokenizer_config(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "plain"}))
    assert ChatTemplate(tmp_path).render([{"role": "user"}]) == "plain"
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert ChatTemplate(tmp_path).render([{"role": "user"}]) == "yes"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('no such order') }}", "no such order"),
        ("{{ messages[0].content.nothing.at_all }}", "refuses"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ range(1000000) | list }}", "Range too big"),
        ("{{ 1 / 0 }}", "division"),
        (
            "{% set x = 'a' * 1000000 %}{% for i in range(90) %}{{ x }}{% endfor %}",
            "longer than",
        ),
    ],
)
def test_refusals_of_the_template(tmp_path: Path, source: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        from_source(tmp_path, source).render([{"role": "user", "content": "x"}])


def test_missing_and_broken_templates(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no chat template"):
        ChatTemplate(tmp_path)
    with pytest.raises(InputError, match="has an error"):
        from_source(tmp_path, "{% if %}")


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([], "messages"),
        ([{"role": "user"}, {"role": "robot"}], "messages[1].role"),
        ([{"role": ["user"]}], "messages[0].role"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            "messages[0].content[0]",
        ),
        ([{"role": "assistant", "tool_calls": ["f"]}], "messages[0].tool_calls[0]"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_bad_messages_name_their_place(
    template: ChatTemplate, messages: list[dict[str, object]], where: str
) -> None:
    with pytest.raises(InputError) as caught:
        template.render(messages)
    assert caught.value.where == where


def test_input_is_left_as_it_was(template: ChatTemplate) -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "assistant", "tool_calls": [call], "content": None}]
    before = json.dumps(messages)
    template.render(messages)
    assert json.dumps(messages) == before
