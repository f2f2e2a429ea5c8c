"""The request bodies, checked at the door; unknown keys are ignored, as OpenAI clients expect.

Messages and tools stay plain dicts: ``chat`` normalises and checks them. Where a range has a
reason of its own it is OpenAI's, and the extensions follow vLLM's names.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    field_validator,
    model_validator,
)

MAX_STOPS = 16
MAX_CHOICES = 32
MAX_TOP_LOGPROBS = 20

StopString = Annotated[str, Field(min_length=1, max_length=512)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _null_is_unset(cls, body: Any) -> Any:
        """Clients write out the fields that they leave alone."""
        if not isinstance(body, dict):
            return body
        return {key: value for key, value in body.items() if value is not None}


class StreamOptions(_Body):
    """What a stream tells besides its text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Sampling(_Body):
    """What both kinds of completion share; None means the checkpoint's default or "off"."""

    model: str
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: StopString | list[StopString] | None = None
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0)
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] = {}
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    return_token_ids: bool = False

    @field_validator("stop")
    @classmethod
    def _few_stops(cls, stop: str | list[str] | None) -> str | list[str] | None:
        if isinstance(stop, list) and len(stop) > MAX_STOPS:
            raise ValueError(f"at most {MAX_STOPS} stop strings")
        return stop

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, none or several."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def wants_running_usage(self) -> bool:
        """Whether every chunk of a stream carries usage."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats


class JsonSchema(_Body):
    """The schema of a ``json_schema`` response format."""

    name: str = "schema"
    json_schema: dict[str, JsonValue] = Field(alias="schema")


class ResponseFormat(_Body):
    """Free text, any JSON object, or JSON of one schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema is missing")
        return self


class FunctionName(_Body):
    """A function by its name."""

    name: str


class NamedTool(_Body):
    """The tool that must be called."""

    type: Literal["function"] = "function"
    function: FunctionName


def _check_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool stays the client's own object: the template prints it into the prompt."""
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise ValueError('a tool must be {"type": "function", "function": {...}}')
    if not isinstance(function.get("name"), str) or not function["name"].strip():
        raise ValueError("a function needs a name")
    parameters = function.get("parameters")
    if not _is_object_schema({} if parameters is None else parameters):
        raise ValueError("parameters must be the JSON schema of an object")
    return tool


def _is_object_schema(schema: object) -> bool:
    """Whether the keys that are read here have the types that JSON Schema gives them."""
    if not isinstance(schema, dict):
        return False
    required = schema.get("required", [])
    named = isinstance(required, list) and all(isinstance(name, str) for name in required)
    return named and isinstance(schema.get("properties", {}), dict)


Tool = Annotated[dict[str, Any], AfterValidator(_check_tool)]


class ChatBody(Sampling):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None

    @property
    def wanted_tokens(self) -> int | None:
        """The output limit: the smaller of the old name's and the new name's."""
        given = [limit for limit in (self.max_tokens, self.max_completion_tokens) if limit]
        return min(given, default=None)

    @property
    def wanted_logprobs(self) -> int | None:
        """How many alternatives per token; None is off."""
        return self.top_logprobs if self.logprobs else None


class CompletionBody(Sampling):
    """POST /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int | None = Field(16, ge=1)
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool = False
    suffix: str | None = None
    best_of: int | None = Field(None, ge=1)

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one or several, each as text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        single = [item for item in self.prompt if isinstance(item, int)]
        several = [item for item in self.prompt if not isinstance(item, int)]
        return [single] if single else list(several)
