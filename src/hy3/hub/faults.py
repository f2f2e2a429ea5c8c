"""What the hub's library raises, as errors with a hint; and the retries around one request."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import httpx
from huggingface_hub import is_offline_mode
from huggingface_hub.errors import (
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from hy3.errors import EnvironmentFault, Hy3Error, InputError

ATTEMPTS = 5  # without progress
FIRST_PAUSE_S = 0.5
_TOO_MANY = (408, 429)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
T = TypeVar("T")

OFFLINE_MESSAGE = "is not in the cache as a whole, and HF_HUB_OFFLINE forbids to fetch it"
OFFLINE_HINT = "unset HF_HUB_OFFLINE, or point HF_HOME to a cache that holds it"
_NETWORK_HINT = (
    "check the network and HF_ENDPOINT; with HF_HUB_OFFLINE=1 what the cache holds is used"
)
_ACCESS_HINT = "accept its terms on the hub, then set HF_TOKEN to a token that may read it"


def is_passing(error: Exception) -> bool:
    """Whether the same request may succeed in a moment."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code >= 500 or error.response.status_code in _TOO_MANY
    return isinstance(error, httpx.TransportError)


def retried(request: Callable[[], T]) -> T:
    """The result of ``request``, asked again while what it raises may pass."""
    for attempt in range(ATTEMPTS):
        try:
            return request()
        except (httpx.TransportError, HfHubHTTPError) as error:
            if attempt == ATTEMPTS - 1 or not is_passing(error):
                raise
            time.sleep(FIRST_PAUSE_S * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def hub_errors(where: str) -> Iterator[None]:
    """Turns the library's exceptions into InputError and EnvironmentFault about ``where``."""
    try:
        yield
    except Hy3Error:
        raise
    except (
        httpx.HTTPError,
        EntryNotFoundError,
        HFValidationError,
        OSError,  # the library's own are some, too
    ) as error:
        raise _translate(error, where) from error


def _translate(error: Exception, where: str) -> Hy3Error:
    if isinstance(error, HFValidationError):
        return InputError("is no possible name of a model", hint="write hf://org/name", where=where)
    if is_offline_mode():
        return EnvironmentFault(OFFLINE_MESSAGE, hint=OFFLINE_HINT, where=where)
    if isinstance(error, HfHubHTTPError):
        return _of_status(error, where)
    if isinstance(error, httpx.HTTPError | LocalEntryNotFoundError):
        message = f"the hub cannot be reached ({_first_line(error)})"
        return EnvironmentFault(message, hint=_NETWORK_HINT, where=where)
    if isinstance(error, FileMetadataError):
        message = "the server does not answer as a hub does"
        return EnvironmentFault(message, hint="check HF_ENDPOINT and any proxy", where=where)
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        message = f"the disk takes no more ({error.strerror})"
        hint = "free some space, or set HF_HOME to a larger disk; what has arrived is kept"
        return EnvironmentFault(message, hint=hint, where=where)
    message = f"cannot be fetched ({_first_line(error)})"
    return EnvironmentFault(message, hint="check the disk and its permissions", where=where)


def _of_status(error: HfHubHTTPError, where: str) -> Hy3Error:
    status = error.response.status_code
    if isinstance(error, GatedRepoError) or status == 403:
        return InputError("access is not granted", hint=_ACCESS_HINT, where=where)
    if isinstance(error, RepositoryNotFoundError):
        hint = "check the spelling; a private or gated one needs HF_TOKEN"
        return InputError("is not on the hub", hint=hint, where=where)
    if isinstance(error, RevisionNotFoundError):
        hint = "name a branch, a tag or a commit of it"
        return InputError("has no such revision", hint=hint, where=where)
    if isinstance(error, EntryNotFoundError):
        hint = "the repository has changed or is incomplete: name another revision"
        return InputError("the hub has no such file", hint=hint, where=where)
    if status == 401:
        return InputError("the hub refuses the token", hint="set another HF_TOKEN", where=where)
    if status == 429:
        hint = "wait a while; what has arrived is kept"
        return EnvironmentFault("the hub allows no more requests now", hint=hint, where=where)
    message = f"the hub answers with status {status}"
    return EnvironmentFault(message, hint="try again later; what has arrived is kept", where=where)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
