"""``create_app``: the HTTP application over one backend and one model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.responses import JSONResponse, Response

from hy3 import __version__
from hy3.server.backend import Backend
from hy3.server.chat import chat_routes
from hy3.server.completions import completion_routes
from hy3.server.errors import install_error_handlers
from hy3.server.gate import Gate, not_ready
from hy3.server.generation import Generator
from hy3.server.keys import ApiKeys
from hy3.server.limits import Admission, Limits
from hy3.server.metrics import CONTENT_TYPE, Metrics
from hy3.server.served import ServedModel


def create_app(backend: Backend, served: ServedModel, limits: Limits, keys: ApiKeys) -> FastAPI:
    """Assemble the server; the backend starts and ends with it."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        backend.start()
        try:
            yield
        finally:
            await backend.close()

    metrics = Metrics(served.name, backend.stats)
    generator = Generator(backend, served.tokenizer, limits, Admission(limits), metrics)
    # The pages that FastAPI would make of it load their scripts from elsewhere.
    app = FastAPI(
        title="hy3", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.add_middleware(Gate, limits=limits, keys=keys, status=lambda: backend.status)
    install_error_handlers(app)
    app.include_router(chat_routes(served, generator))
    app.include_router(completion_routes(served, generator))
    app.include_router(model_routes(served, backend))
    app.include_router(operation_routes(backend, metrics))
    return app


def model_routes(served: ServedModel, backend: Backend) -> APIRouter:
    """The list of models, which has one entry."""
    router = APIRouter()

    @router.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [served.as_model(backend.max_context)]}

    @router.get("/v1/models/{model:path}")
    async def retrieve_model(model: str) -> dict[str, Any]:
        served.check_name(model)
        return served.as_model(backend.max_context)

    return router


def operation_routes(backend: Backend, metrics: Metrics) -> APIRouter:
    """What those look at who run the server."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> Response:
        if backend.status != "ready":
            raise not_ready(backend.status)
        return JSONResponse({"status": "ready"})

    @router.get("/metrics")
    async def scrape() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    return router
