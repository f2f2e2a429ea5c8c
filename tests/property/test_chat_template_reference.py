"""Templates against an independent reading of the prompt format, on random conversations."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hy3.chat.markers import find_marker_suffix
from hy3.chat.template import ChatTemplate
from support.reference_prompt import reference_prompt
from support.tiny import TINY

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = {
    "golden": ROOT / "tests" / "golden" / "chat_template_suffixed.jinja",
    "hy3-tiny": TINY / "chat_template.jinja",
}
TOOL = {"type": "function", "function": {"name": "look", "description": 'up <"é">'}}

text = st.text(max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
call = st.fixed_dictionaries(
    {
        "function": st.fixed_dictionaries(
            {"name": text, "arguments": st.dictionaries(text, values, max_size=3)}
        )
    }
)
message = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": text}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": text},
        optional={
            "reasoning_content": text.filter(bool),
            "tool_calls": st.lists(call, min_size=1, max_size=3),
        },
    ),
)

system = st.fixed_dictionaries({"role": st.just("system"), "content": text})
# System messages lead, as clients send them; what "the last message" means is then one thing.
conversation = st.tuples(st.lists(system, max_size=2), st.lists(message, max_size=6)).map(
    lambda parts: parts[0] + parts[1]
)


@cache
def load(name: str) -> tuple[ChatTemplate, str, str, str]:
    """The template, its suffix, and what stands before and after the list of tools."""
    path = TEMPLATES[name]
    if not path.exists():
        pytest.skip(f"{path} is not there")
    template = ChatTemplate(path.parent) if name != "golden" else golden_template(path)
    suffix = ":opensource" if name == "golden" else find_marker_suffix(path.parent)
    assert suffix is not None
    prompt = template.render([{"role": "user", "content": ""}], [TOOL], "low")
    head, _, tail = prompt.partition(json.dumps(TOOL, ensure_ascii=False))
    before = head.removeprefix(f"<｜hy_begin_of_sentence{suffix}｜>")
    after, mode, _ = tail.partition(f"<｜reasoning_mode{suffix}｜>")
    assert mode
    return template, suffix, before, after


def golden_template(path: Path) -> ChatTemplate:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        copy = Path(folder) / "chat_template.jinja"
        copy.write_bytes(path.read_bytes())
        return ChatTemplate(copy.parent)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=150, deadline=None)
@given(
    messages=conversation.filter(bool),
    tools=st.lists(st.dictionaries(text, values, min_size=1, max_size=2), max_size=2),
    effort=st.sampled_from(["no_think", "low", "high"]),
    keep=st.none() | st.booleans(),
)
def test_template_equals_reference(
    name: str,
    messages: list[dict[str, object]],
    tools: list[dict[str, object]],
    effort: str,
    keep: bool | None,
) -> None:
    template, suffix, before, after = load(name)
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    extra = {} if keep is None else {"preserved_thinking": keep}
    expected = reference_prompt(
        messages, before + lines + after if tools else "", effort, suffix, keep
    )
    assert template.render(messages, tools or None, effort, **extra) == expected
