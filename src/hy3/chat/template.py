"""``ChatTemplate``: renders messages with the checkpoint's own jinja template, sandboxed.

The environment is the one that ``transformers`` gives to templates (trimmed blocks, JSON without
HTML escapes, ``raise_exception``, ``strftime_now``), so a template renders here as it does there.
Before rendering, messages are brought to one form: see ``messages.normalize``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hy3.chat.messages import normalize
from hy3.checkpoint.json_file import read_json_if_there
from hy3.errors import InputError

Effort = Literal["no_think", "low", "high"]

_EFFORTS: dict[str, Effort] = {
    "none": "no_think",
    "no_think": "no_think",
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
_MAX_PROMPT_CHARACTERS = 64 * 1024 * 1024
_OWN_VARIABLES = frozenset({"messages", "tools", "reasoning_effort", "add_generation_prompt"})


def map_effort(value: object) -> Effort:
    """The template's effort for an effort of the OpenAI API; an unknown one is an InputError."""
    effort = _EFFORTS.get(value) if isinstance(value, str) else None
    if effort is None:
        raise InputError(
            f"unknown reasoning_effort {value!r}",
            hint=f"use one of {', '.join(_EFFORTS)}",
            where="reasoning_effort",
        )
    return effort


def resolve_effort(
    requested: object, template_kwargs: Mapping[str, Any] | None, default: Effort | None
) -> tuple[Effort | None, dict[str, Any]]:
    """Settle a request's effort and what else it hands to the template.

    The request's own ``reasoning_effort`` wins over the one in ``chat_template_kwargs``, which wins
    over the server's default; None leaves the choice to the template.
    """
    extra = dict(template_kwargs or {})
    nested = extra.pop("reasoning_effort", None)
    value = requested if requested is not None else nested
    for name in extra:
        if name in _OWN_VARIABLES:
            raise InputError(
                f"{name} cannot be set here",
                hint=f"give {name} in the request itself",
                where="chat_template_kwargs",
            )
    return (default if value is None else map_effort(value)), extra


class ChatTemplate:
    """The template of ``folder``: ``chat_template.jinja``, else the key in tokenizer_config.json.

    A missing template and one with a syntax error are InputErrors, raised here.
    """

    def __init__(self, folder: Path) -> None:
        config = read_json_if_there(folder / "tokenizer_config.json") or {}
        source, self._where = _find_source(folder, config)
        # Templates may use any of the named tokens, as ``bos_token``.
        self._tokens = {
            name: token.get("content") if isinstance(token, dict) else token
            for name, token in config.items()
            if name.endswith("_token") and isinstance(token, str | dict)
        }
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise InputError(
                f"the chat template has an error ({error})",
                hint="fetch the file again from where the checkpoint came from",
                where=self._where,
            ) from error

    def render(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        reasoning_effort: Effort | None = None,
        **extra: Any,
    ) -> str:
        """The prompt, ending where the model goes on writing.

        ``extra`` reaches the template as it is; ``reasoning_effort`` None leaves the template's
        default. Whatever the template refuses is an InputError.
        """
        variables: dict[str, Any] = {"add_generation_prompt": True, **self._tokens, **extra}
        variables["messages"] = normalize(messages)
        variables["tools"] = [dict(tool) for tool in tools] if tools else None
        if reasoning_effort is not None:
            variables["reasoning_effort"] = reasoning_effort
        try:
            return self._join(variables)
        except InputError:
            raise
        except Exception as error:  # the code that ran is the checkpoint's, on a client's data
            raise InputError(
                f"the chat template refuses these messages ({error})",
                hint="check the order, the roles and the contents of the messages",
                where=self._where,
            ) from error

    def _join(self, variables: dict[str, Any]) -> str:
        """Render piece by piece, so that a template that never ends is stopped."""
        pieces: list[str] = []
        length = 0
        for piece in self._template.generate(variables):
            pieces.append(piece)
            length += len(piece)
            if length > _MAX_PROMPT_CHARACTERS:
                raise InputError(
                    f"the prompt is longer than {_MAX_PROMPT_CHARACTERS} characters",
                    hint="send fewer or shorter messages",
                    where=self._where,
                )
        return "".join(pieces)


def _find_source(folder: Path, config: dict[str, Any]) -> tuple[str, str]:
    """The template's text and the file that holds it."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_bytes().decode("utf-8", "replace"), str(path)
    found = config.get("chat_template")
    if isinstance(found, list):  # several named templates
        named = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}
        found = named.get("default")
    if not isinstance(found, str):
        raise InputError(
            "has no chat template",
            hint="copy chat_template.jinja from the original checkpoint into this folder",
            where=str(folder),
        )
    return found, str(folder / "tokenizer_config.json")


class _Generation(Extension):
    """``{% generation %}`` marks what the model wrote, for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 reads this attribute of the class)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    pair = cast("tuple[str, str] | None", tuple(separators) if separators else None)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
