"""``hy3 chat``: talk to an endpoint in the terminal, or ask it one thing.

The answer goes to stdout, the reasoning to stderr, so that a pipe gets the answer alone.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from hy3.cli.endpoint import DEFAULT_URL, read_api_key
from hy3.cli.output import Output, print_error
from hy3.errors import Hy3Error, InputError

if TYPE_CHECKING:
    from hy3.cli.conversation import Conversation, Reply

HELP = (
    "/effort LEVEL sets the reasoning, /clear forgets what was said, /help says this, /exit leaves"
)
# What a terminal would obey; a model may write anything.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def command(
    url: str = typer.Argument(DEFAULT_URL, help="An OpenAI-compatible endpoint."),
    message: str = typer.Option(
        None, "--message", "-m", help="Ask this, print the answer and exit."
    ),
    system: str = typer.Option(None, help="System message."),
    effort: str = typer.Option(
        None, help="Reasoning: none, low, high.", show_default="the server's"
    ),
    tools: Path = typer.Option(None, help="JSON file with a list of tools to offer."),
    temperature: float = typer.Option(None, min=0.0, help="0 is greedy."),
    max_tokens: int = typer.Option(None, min=1, help="Bound on each answer."),
    model: str = typer.Option(
        None, help="Name of the model to ask for.", show_default="the server's first"
    ),
    api_key_file: Path = typer.Option(
        None, help="File with the API key.", show_default="the variable HY3_API_KEY"
    ),
    timeout_s: float = typer.Option(600.0, min=1.0, help="Bound on one answer, in seconds."),
    json_output: bool = typer.Option(False, "--json", help="Print one JSON object on stdout."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors only."),
) -> None:
    """Chat with an endpoint in the terminal.

    One question if --message is given or stdin is a pipe.
    """
    from hy3.cli.conversation import Conversation

    settings = {
        "model": model,
        "reasoning_effort": parse_effort(effort) if effort else None,
        "tools": read_tools(tools) if tools else None,
        "temperature": temperature,
        "max_tokens": max_tokens,
    }
    conversation = Conversation(
        url,
        read_api_key(api_key_file),
        timeout_s,
        system,
        {name: value for name, value in settings.items() if value is not None},
    )
    output = Output(json_output, quiet)
    screen = Screen(show_reasoning=not quiet, silent=json_output)
    if message is None and sys.stdin.isatty():
        if json_output:
            raise InputError(
                "--json needs a question", hint="give --message, or pipe one in", where="--json"
            )
        _converse(conversation, screen, output)
    else:
        text = sys.stdin.read() if message is None else message
        reply = _turn(conversation, [{"role": "user", "content": text}], screen)
        output.result("chat", _as_json(reply))


def parse_effort(text: str) -> str:
    """An effort as the API spells it: what the template calls no_think, it calls none."""
    from hy3.chat.template import map_effort

    return "none" if map_effort(text) == "no_think" else text


def read_tools(path: Path) -> list[dict[str, Any]]:
    """The list of tools in a JSON file."""
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be read ({error})", hint="give a JSON file", where=str(path)
        ) from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise InputError(
            "is not a list of tools",
            hint='for example [{"type": "function", "function": {"name": "time"}}]',
            where=str(path),
        )
    return tools


class Screen:
    """Shows a reply as it comes; on a terminal reasoning is dim and control characters are
    harmless."""

    def __init__(self, show_reasoning: bool, silent: bool) -> None:
        self._show_reasoning = show_reasoning and not silent
        self._silent = silent
        self._thinking = False

    def reasoning(self, text: str) -> None:
        """A piece of reasoning."""
        if self._show_reasoning:
            self._thinking = True
            _write(sys.stderr, text, dim=True)

    def content(self, text: str) -> None:
        """A piece of the answer."""
        self._end_reasoning()
        if not self._silent:
            _write(sys.stdout, text)

    def note(self, text: str) -> None:
        """A line about the conversation itself."""
        _write(sys.stderr, f"({text})\n", dim=True)

    def end(self, reply: Reply) -> None:
        """What is known once the reply is whole: its calls, and whether it was cut."""
        self._end_reasoning()
        if self._silent:
            return
        if reply.content:
            _write(sys.stdout, "\n")
        for call in reply.tool_calls:
            _write(sys.stdout, f"call {call['name']}({call['arguments']})\n")
        if reply.finish_reason == "length":
            self.note("cut: the limit of tokens was reached")

    def _end_reasoning(self) -> None:
        if self._thinking:
            self._thinking = False
            _write(sys.stderr, "\n\n")


def _write(stream: TextIO, text: str, dim: bool = False) -> None:
    if stream.isatty():
        text = _CONTROL.sub("\ufffd", text)
        text = f"\x1b[2m{text}\x1b[0m" if dim else text
    stream.write(text)
    stream.flush()


def _turn(conversation: Conversation, new: list[dict[str, Any]], screen: Screen) -> Reply:
    import asyncio

    reply = asyncio.run(conversation.ask(new, screen.reasoning, screen.content))
    screen.end(reply)
    return reply


def _as_json(reply: Reply) -> dict[str, Any]:
    return {
        "model": reply.model,
        "reasoning": reply.reasoning or None,
        "content": reply.content or None,
        "tool_calls": reply.tool_calls,
        "finish_reason": reply.finish_reason,
        "usage": reply.usage,
    }


def _converse(conversation: Conversation, screen: Screen, output: Output) -> None:
    """Read lines until the end of input or /exit; an error ends a turn, not the conversation."""
    output.status(f"{conversation.url}: {HELP}")
    while (line := _read_line("> ")) is not None:
        if line.startswith("/"):
            if line == "/exit":
                return
            _obey(line, conversation, screen)
        elif line:
            _answer(line, conversation, screen)


def _answer(line: str, conversation: Conversation, screen: Screen) -> None:
    """One question with all the rounds of tool calls that it takes; if one fails, none was."""
    before = len(conversation.messages)
    pending = [{"role": "user", "content": line}]
    try:
        while pending:
            reply = _turn(conversation, pending, screen)
            pending = []
            for call in reply.tool_calls:
                result = _read_line(f"result of {call['name']}: ") or ""
                pending.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    except Hy3Error as error:
        del conversation.messages[before:]
        print_error(error, as_json=False)
    except KeyboardInterrupt:
        del conversation.messages[before:]
        print("\n(stopped)", file=sys.stderr)


def _read_line(prompt: str) -> str | None:
    """A line without the spaces around it, None at the end of input."""
    try:
        return input(prompt).strip()
    except EOFError:
        return None


def _obey(line: str, conversation: Conversation, screen: Screen) -> None:
    """Do what a line that begins with a slash says, and answer in one line."""
    match line.split():
        case ["/clear"]:
            count = len(conversation.messages)
            conversation.clear()
            kept = "" if conversation.system is None else "; the system message stays"
            screen.note(f"forgot {count} messages{kept}")
        case ["/effort"]:
            effort = conversation.settings.get("reasoning_effort", "as the server has it")
            screen.note(f"reasoning effort: {effort}")
        case ["/effort", level]:
            _set_effort(level, conversation, screen)
        case ["/help"]:
            screen.note(HELP)
        case _:
            screen.note(f"no command {line}; {HELP}")


def _set_effort(level: str, conversation: Conversation, screen: Screen) -> None:
    try:
        effort = parse_effort(level)
    except InputError as error:
        screen.note(f"{error.message}; {error.hint}")
        return
    conversation.settings["reasoning_effort"] = effort
    screen.note(f"reasoning effort: {effort}")
