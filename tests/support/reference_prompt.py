"""A second, plain reading of the prompt format, to judge templates against."""

from __future__ import annotations

import json
from typing import Any


def reference_prompt(
    messages: list[dict[str, Any]],
    tool_block: str,
    effort: str,
    suffix: str,
    preserved_thinking: bool | None = None,
) -> str:
    """The prompt of hy_v3 for messages in normal form; ``tool_block`` is empty without tools."""
    keep = bool(tool_block) if preserved_thinking is None else preserved_thinking
    last = len(messages) - 1
    last_user = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    system = "".join(m["content"] for m in messages if m["role"] == "system")
    out = [f"<｜hy_begin_of_sentence{suffix}｜>", system]
    if tool_block:
        out += ["\n\n" if system else "", tool_block]
    out.append(f"<｜reasoning_mode{suffix}｜>reasoning_effort:{effort}")
    answering, first = False, True
    for i, m in enumerate(messages):
        if m["role"] in ("user", "assistant") and answering:
            out.append(f"</tool_responses{suffix}>")
            answering = False
        if m["role"] == "user":
            out += [f"<｜hy_User{suffix}｜>", m["content"]]
        elif m["role"] == "assistant":
            out.append(f"<｜hy_Assistant{suffix}｜><think{suffix}>")
            if keep or i > last_user:
                out.append(m.get("reasoning_content", ""))
            out += [f"</think{suffix}>", m["content"]]
            if m.get("tool_calls"):
                out.append(_group(m["tool_calls"], suffix) + f"<｜hy_eos{suffix}｜>")
                first = True
            elif i != last:
                out.append(f"<｜hy_eos{suffix}｜>")
        elif m["role"] == "tool":
            out.append(f"<tool_responses{suffix}>\n" if first else "")
            out.append(f"<tool_response{suffix}>\n{m['content']}\n</tool_response{suffix}>\n")
            first, answering = False, True
    out.append(f"</tool_responses{suffix}>" if answering else "")
    if messages[-1]["role"] != "assistant":
        out.append(f"<｜hy_Assistant{suffix}｜><think{suffix}>")
        out.append(f"</think{suffix}>" if effort == "no_think" else "")
    return "".join(out)


def _group(calls: list[dict[str, Any]], suffix: str) -> str:
    out = [f"<tool_calls{suffix}>\n"]
    for call in calls:
        out.append(f"<tool_call{suffix}>{call['function']['name']}<tool_sep{suffix}>\n")
        for key, value in call["function"]["arguments"].items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            out.append(f"<arg_key{suffix}>{key}</arg_key{suffix}>\n")
            out.append(f"<arg_value{suffix}>{text}</arg_value{suffix}>\n")
        out.append(f"</tool_call{suffix}>\n")
    out.append(f"</tool_calls{suffix}>")
    return "".join(out)
