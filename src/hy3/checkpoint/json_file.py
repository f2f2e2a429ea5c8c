"""Files of a checkpoint that somebody else may have made: opened safely, read as strict JSON."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from hy3.checkpoint.strict_json import JsonFault, parse_object
from hy3.errors import InputError

MAX_JSON_BYTES = 100_000_000
_FETCH_AGAIN = "fetch the file again from where the checkpoint came from"


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it; InputError for anything that a read could wait for or never end."""
    try:
        # A FIFO without a writer would block in open() itself.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(
            "is not a regular file", hint="put a file there, or name another", where=str(path)
        )
    return os.fdopen(descriptor, "rb")


def unreadable(path: Path, error: OSError) -> InputError:
    """What to say of a file that the system does not give."""
    missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    hint = "point to a folder that holds a whole checkpoint" if missing else "check its permissions"
    return InputError(f"cannot be read ({error.strerror})", hint=hint, where=str(path))


def read_json_object(path: Path, hint: str = _FETCH_AGAIN) -> dict[str, Any]:
    """Read a JSON file that must hold an object; every failure is an InputError.

    Args:
        hint: what to do about a file whose content is wrong
    """
    try:
        with open_regular(path) as file:
            # A buffer of the size asked for is made before a byte is read: ask for the file's own.
            size = os.fstat(file.fileno()).st_size
            if size > MAX_JSON_BYTES:
                message = f"holds {size} bytes; at most {MAX_JSON_BYTES} are read"
                raise InputError(message, hint, str(path))
            raw = file.read(size)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        return parse_object(raw)
    except JsonFault as error:
        raise InputError(error.reason, hint, f"{path}: byte {error.offset}") from error


def read_json_if_there(path: Path, hint: str = _FETCH_AGAIN) -> dict[str, Any] | None:
    """The same, None where no file bears that name; a link that leads nowhere is none either."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    return read_json_object(path, hint)
