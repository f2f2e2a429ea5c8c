"""The grammar that holds a reply to what the request demands of it."""

from __future__ import annotations

import json
from typing import Any

from hy3.engine.request import GrammarSpec
from hy3.server.schema import ChatBody
from hy3.server.served import ServedModel

_ANY_OBJECT = {"type": "object"}


def output_grammar(
    body: ChatBody, tools: list[dict[str, Any]] | None, served: ServedModel, thinking: bool
) -> GrammarSpec | None:
    """JSON if asked for, after the reasoning if the prompt has opened it; else no constraint."""
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None
    schema = wanted.json_schema.json_schema if wanted.json_schema else _ANY_OBJECT
    rule = f"%json {json.dumps(schema)}"
    if thinking:
        close = served.tokenizer.token_id(served.markers.think_close)
        return GrammarSpec(
            "lark", f"start: REASONING <[{close}]> reply\nREASONING: /(?s:.*)/\nreply: {rule}\n"
        )
    return GrammarSpec("lark", f"start: {rule}\n")
