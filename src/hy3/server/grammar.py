"""The grammar that holds a reply to what the request demands of it."""

from __future__ import annotations

from typing import Any

from hy3.chat.grammar import json_grammar, tool_grammar
from hy3.chat.markers import Markers
from hy3.engine.request import GrammarSpec
from hy3.server.errors import bad_request
from hy3.server.schema import ChatBody, NamedTool


def output_grammar(
    body: ChatBody, tools: list[dict[str, Any]] | None, markers: Markers, thinking: bool
) -> GrammarSpec | None:
    """Calls for ``tool_choice`` required or a name, JSON for ``response_format``, else None.

    JSON leaves the model free to call a tool instead, where ``tool_choice`` does.
    ``thinking``: the prompt has opened the reasoning, which comes first and stays free.
    """
    if isinstance(body.tool_choice, NamedTool) or body.tool_choice == "required":
        if not tools:
            raise bad_request("tool_choice demands a call, but there are no tools", "tools")
        name = None if body.tool_choice == "required" else body.tool_choice.function.name
        text = tool_grammar(tools, markers, name, body.parallel_tool_calls, thinking)
        return GrammarSpec("lark", text)
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None
    schema = wanted.json_schema.json_schema if wanted.json_schema else None
    text = json_grammar(schema, markers, thinking, tools, body.parallel_tool_calls)
    return GrammarSpec("lark", text)
