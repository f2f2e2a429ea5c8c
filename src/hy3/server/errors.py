"""Errors as OpenAI clients read them: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from hy3.errors import Hy3Error
from hy3.server.backend import EngineFailure

logger = logging.getLogger("hy3.server")

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


class ApiError(HTTPException):
    """One failure of one request; ``code`` is what programs look at, ``message`` what people do."""

    def __init__(
        self,
        status: int,
        code: str | None,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.code = code
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        """The envelope, also sent as the data of an event when a stream is already running."""
        error = {
            "message": self.message,
            "type": _TYPES.get(self.status_code, "server_error"),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def response(self) -> Response:
        """The same as an HTTP answer, in ASCII: a message may quote half of a surrogate pair."""
        text = json.dumps(self.body())
        return Response(text, self.status_code, self.headers, "application/json")


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400: the request can never succeed as it is."""
    return ApiError(400, code, message, param)


def as_api_error(error: Exception) -> ApiError:
    """Map any exception of a request; what is not ours is logged and told as an internal error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, Hy3Error):
        if error.exit_code == 2:
            return bad_request(f"{error} ({error.hint})")
        return ApiError(500, error.kind, str(error))
    if isinstance(error, EngineFailure):
        return ApiError(500, "engine_failure", f"the engine has failed ({error})")
    logger.error("request failed", exc_info=error)
    return ApiError(500, "internal_error", "internal error; the server's log has the details")


def install_error_handlers(app: FastAPI) -> None:
    """Give every expected failure of a route the OpenAI envelope; ``gate`` takes the rest."""

    async def handle(_request: Request, error: Exception) -> Response:
        if isinstance(error, RequestValidationError):
            error = _from_validation(error)
        elif isinstance(error, HTTPException) and not isinstance(error, ApiError):
            code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
            error = ApiError(error.status_code, code, str(error.detail), headers=error.headers)
        return as_api_error(error).response()

    app.add_exception_handler(RequestValidationError, handle)
    app.add_exception_handler(HTTPException, handle)
    app.add_exception_handler(Hy3Error, handle)


def _from_validation(error: RequestValidationError) -> ApiError:
    """The first complaint, with the field's path as ``param``."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return bad_request(f"the body is not valid JSON: {first['ctx']['error']}", code="bad_json")
    if not path:
        return bad_request("the body must be a JSON object, sent as Content-Type: application/json")
    name = ".".join(path)
    return bad_request(f"{name}: {first['msg'].removeprefix('Value error, ')}", name)
