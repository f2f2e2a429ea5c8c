"""A hub on loopback that the real ``huggingface_hub`` client talks to, with faults on demand.

Like the real one it answers the model API, resolves files with their commit, size and hash in
headers, and sends shards by a redirect to another host, which must never see the token.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from huggingface_hub import HfApi

REPOSITORY = "org/hy3-tiny"
_API = re.compile(r"/api/models/(\w+/[\w.-]+)(?:/revision/([^/]+))?")
_RESOLVE = re.compile(r"/(\w+/[\w.-]+)/resolve/([^/]+)/(.+)")
_CHUNK = 64 * 1024


@dataclass
class Fault:
    """What goes wrong with the next ``times`` answers that carry a file's content."""

    times: int = 1
    reset_after: int | None = None  # bytes, then the connection is reset
    flip_at: int | None = None  # this byte of the file arrives changed
    status: int | None = None
    ignore_range: bool = False
    seconds_per_chunk: float = 0.0
    extra_bytes: int = 0  # sent after the content, and announced

    def take(self) -> bool:
        self.times -= 1
        return self.times >= 0


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    file: str  # "" for the API
    range: tuple[int, int] | None  # first byte and the one after the last
    authorized: bool
    content: bool


@dataclass
class Hub:
    """One repository; change ``folder`` or ``commit`` and the hub has another version of it."""

    folder: Path
    port: int = 0
    commit: str = "1" * 40
    gated: bool = False
    token: str = ""  # that opens a gated repository
    git_files: bool = False  # shards lie in git itself, not in LFS
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)  # content bytes by file
    gate: threading.Event | None = None  # content waits until it is set
    lock: threading.Lock = field(default_factory=threading.Lock)
    _digests: dict[tuple[str, int, int], str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def api(self, token: str | bool = False) -> HfApi:
        return HfApi(endpoint=self.url, token=token)

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.is_file())

    def in_lfs(self, name: str) -> bool:
        return name.endswith(".safetensors") and not self.git_files

    def digest(self, path: Path) -> str:
        status = path.stat()
        key = (str(path), status.st_mtime_ns, self.in_lfs(path.name))
        if key not in self._digests:
            data = path.read_bytes()
            sha = hashlib.sha256(data) if key[2] else hashlib.sha1(b"blob %d\0" % len(data) + data)
            self._digests[key] = sha.hexdigest()
        return self._digests[key]

    def fault_of(self, name: str) -> Fault:
        with self.lock:
            for fault in self.faults.get(name, []):
                if fault.take():
                    return fault
        return Fault()

    def content_requests(self, suffix: str = ".safetensors") -> list[Request]:
        """Requests that were answered with bytes of files of this suffix."""
        return [
            each
            for each in self.requests
            if each.method == "GET" and each.file.endswith(suffix) and each.content
        ]


@contextmanager
def serve_hub(folder: Path, **settings: Any) -> Iterator[Hub]:
    hub = Hub(folder, **settings)

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        if hub.gate:
            hub.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: Hub

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing on stderr."""

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True

    def do_HEAD(self) -> None:
        self._route()

    def do_GET(self) -> None:
        self._route()

    def _route(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if match := _API.fullmatch(path):
            self._note("", False)
            if self._may_read(match[1], match[2]):
                self._model()
        elif match := _RESOLVE.fullmatch(path):
            self._note(match[3], not self.hub.in_lfs(match[3]))
            if self._may_read(match[1], match[2]):
                self._resolve(match[3])
        elif path.startswith("/content/"):
            self._note(path.removeprefix("/content/"), True)
            self._content(self.hub.folder / path.removeprefix("/content/"), {})
        else:
            self._refuse(404, "")

    def _note(self, file: str, content: bool) -> None:
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        size = (self.hub.folder / file).stat().st_size if (self.hub.folder / file).exists() else 0
        asked = (int(span[1]), int(span[2]) + 1 if span[2] else size) if span else None
        authorized = "Authorization" in self.headers
        with self.hub.lock:
            self.hub.requests.append(
                Request(self.command, self.path, file, asked, authorized, content)
            )

    def _may_read(self, repository: str, revision: str | None) -> bool:
        hub = self.hub
        if repository != REPOSITORY:
            self._refuse(404, "RepoNotFound")
        elif hub.gated and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._refuse(403 if "Authorization" in self.headers else 401, "GatedRepo")
        elif revision not in (None, "main", hub.commit):
            self._refuse(404, "RevisionNotFound")
        else:
            return True
        return False

    def _model(self) -> None:
        siblings = []
        for path in self.hub.files():
            size = path.stat().st_size
            entry: dict[str, Any] = {"rfilename": path.name, "size": size, "blobId": "0" * 40}
            if self.hub.in_lfs(path.name):
                lfs = {"sha256": self.hub.digest(path), "size": size, "pointerSize": 134}
                entry["lfs"] = lfs
            else:
                entry["blobId"] = self.hub.digest(path)
            siblings.append(entry)
        body = json.dumps(
            {"id": REPOSITORY, "sha": self.hub.commit, "siblings": siblings, "tags": []}
        ).encode()
        self._head(200, {"Content-Type": "application/json"}, len(body))
        self.wfile.write(body)

    def _resolve(self, name: str) -> None:
        path = self.hub.folder / name
        if not path.exists():
            self._refuse(404, "EntryNotFound")
            return
        headers = {
            "X-Repo-Commit": self.hub.commit,
            "ETag": f'"{self.hub.digest(path)}"',
            "Accept-Ranges": "bytes",
        }
        if not self.hub.in_lfs(name):
            self._content(path, headers)
            return
        headers |= {
            "X-Linked-Size": str(path.stat().st_size),
            "X-Linked-ETag": headers["ETag"],
            "Location": f"http://localhost:{self.hub.port}/content/{name}",
        }
        self._head(302, headers, 0)

    def _content(self, path: Path, headers: dict[str, str]) -> None:
        fault = self.hub.fault_of(path.name) if self.command == "GET" else Fault()
        if fault.status:
            self._refuse(fault.status, "")
            return
        size = path.stat().st_size
        start, end, status = 0, size, 200
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if span and not fault.ignore_range:
            start, end = int(span[1]), min(int(span[2]) + 1 if span[2] else size, size)
            status, headers = 206, headers | {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
        self._head(status, headers, end - start + fault.extra_bytes)
        if self.command == "GET":
            self._send(path, start, end, fault)

    def _send(self, path: Path, start: int, end: int, fault: Fault) -> None:
        if self.hub.gate:
            self.hub.gate.wait(30)
        done = 0
        with path.open("rb") as file:
            file.seek(start)
            while start + done < end:
                wanted = min(_CHUNK, end - start - done)
                if fault.reset_after is not None:
                    wanted = min(wanted, fault.reset_after - done)
                if not wanted:
                    self._reset()
                    return
                chunk = bytearray(file.read(wanted))
                if fault.flip_at is not None and 0 <= fault.flip_at - start - done < wanted:
                    chunk[fault.flip_at - start - done] ^= 0xFF
                time.sleep(fault.seconds_per_chunk)
                self.wfile.write(chunk)
                done += wanted
                with self.hub.lock:
                    self.hub.sent[path.name] = self.hub.sent.get(path.name, 0) + wanted
        self.wfile.write(bytes(fault.extra_bytes))

    def _reset(self) -> None:
        """A TCP reset instead of the rest."""
        self.wfile.flush()
        time.sleep(0.05)  # a reset also drops what the client has not read yet
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
        raise ConnectionResetError

    def _refuse(self, status: int, code: str) -> None:
        self._head(status, {"X-Error-Code": code, "X-Error-Message": code or "fault"}, 0)

    def _head(self, status: int, headers: dict[str, str], length: int) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
