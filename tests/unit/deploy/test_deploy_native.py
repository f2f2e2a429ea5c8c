"""The engine's thread: what crosses to it and back, and that nothing stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hy3.chat.tokenizer import Tokenizer
from hy3.deploy.native import NativeBackend
from hy3.deploy.native_plan import NativeOptions
from hy3.engine.request import GrammarSpec, Request, SamplingParams
from hy3.errors import InputError
from hy3.server.backend import EngineFailure
from support.scripted import LONG, make_scripted

DEADLINE_S = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_scripted(tmp_path_factory.mktemp("native") / "model")


def request(folder: Path, name: str, max_tokens: int = 1000, **params) -> Request:
    prompt = tuple(Tokenizer(folder).encode("Count:"))
    return Request(name, prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0, **params))


def with_backend(folder: Path, work: Callable[[NativeBackend], Awaitable[None]]) -> NativeBackend:
    """Run ``work`` on an event loop of its own beside a backend that is ready."""
    backend = NativeBackend(folder, NativeOptions(max_context=1024, max_requests=4))

    async def main() -> None:
        backend.start()
        try:
            await until(lambda: backend.status != "loading")
            assert backend.status == "ready", backend.error
            await work(backend)
        finally:
            await backend.close()

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))
    assert not backend._thread.is_alive()
    return backend


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_outputs_arrive_in_order_and_the_last_has_usage(folder: Path) -> None:
    async def work(backend: NativeBackend) -> None:
        outputs = await backend.submit([request(folder, "a"), request(folder, "b", 7)])
        tokens: dict[str, list[int]] = {"a": [], "b": []}
        finished = {}
        while len(finished) < 2:
            output = await outputs.next()
            assert output.request_id not in finished
            tokens[output.request_id] += output.token_ids
            if output.finish_reason:
                finished[output.request_id] = output
        assert Tokenizer(folder).decode(tokens["a"]) == LONG
        assert tokens["b"] == tokens["a"][:7]
        assert (finished["a"].finish_reason, finished["b"].finish_reason) == ("stop", "length")
        assert finished["b"].usage.output_tokens == 7
        await until(lambda: backend.stats().kv_blocks_used == 0)

    with_backend(folder, work)


def test_closing_frees_the_blocks_within_a_step(folder: Path) -> None:
    async def work(backend: NativeBackend) -> None:
        outputs = await backend.submit([request(folder, n, ignore_eos=True) for n in "abcd"])
        await outputs.next()
        assert backend.stats().kv_blocks_used > 0
        steps = backend.stats().steps
        outputs.close()
        await until(lambda: backend.stats().running == 0)
        stats = backend.stats()
        assert (stats.kv_blocks_used, stats.waiting) == (0, 0)
        # The step under way when the word came, and none after it.
        assert stats.steps <= steps + 2
        outputs.close()

    with_backend(folder, work)


def test_aborting_one_leaves_the_others(folder: Path) -> None:
    async def work(backend: NativeBackend) -> None:
        outputs = await backend.submit([request(folder, "a", 50), request(folder, "b", 50)])
        outputs.abort("a")
        reasons = {}
        while len(reasons) < 2:
            output = await outputs.next()
            if output.finish_reason:
                reasons[output.request_id] = output.finish_reason
        assert reasons == {"a": "abort", "b": "length"}

    with_backend(folder, work)


def test_a_group_is_refused_as_a_whole(folder: Path) -> None:
    async def work(backend: NativeBackend) -> None:
        for text in ("start: nothing", 'start: "\ud83d"'):
            broken = request(folder, "b", grammar=GrammarSpec("lark", text))
            with pytest.raises(InputError, match="does not compile"):
                await backend.submit([request(folder, "a"), broken])
        await until(lambda: backend.stats().running == 0)
        assert backend.stats().kv_blocks_used == 0
        outputs = await backend.submit([request(folder, "a", 2)])
        assert (await outputs.next()).request_id == "a"

    with_backend(folder, work)


def test_a_request_that_breaks_the_engine_on_arrival_is_the_only_one_to_fail(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(backend: NativeBackend) -> None:
        running = await backend.submit([request(folder, "a", 400, ignore_eos=True)])
        with monkeypatch.context() as patch:
            patch.setattr("hy3.engine.engine.Engine._matcher", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await backend.submit([request(folder, "b")])
        while (await running.next()).finish_reason is None:
            pass
        assert backend.status == "ready"

    with_backend(folder, work)


def test_a_submission_that_is_cancelled_leaves_nothing(folder: Path) -> None:
    async def work(backend: NativeBackend) -> None:
        task = asyncio.ensure_future(backend.submit([request(folder, "a", ignore_eos=True)]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        outputs = await backend.submit([request(folder, "b", 1)])
        assert (await outputs.next()).finish_reason == "length"
        await until(lambda: backend.stats().kv_blocks_used == 0)
        assert backend.stats().running + backend.stats().waiting == 0

    with_backend(folder, work)


def test_stopping_ends_what_still_runs(folder: Path) -> None:
    waiting = []

    async def work(backend: NativeBackend) -> None:
        outputs = await backend.submit([request(folder, "a", ignore_eos=True)])
        await outputs.next()
        await backend.close()

        async def drain() -> None:
            while True:
                await outputs.next()

        with pytest.raises(EngineFailure, match="stopping"):
            await drain()
        waiting.append(True)

    with_backend(folder, work)
    assert waiting == [True]


def test_a_crash_of_the_engine_reaches_everyone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(backend: NativeBackend) -> None:
        outputs = await backend.submit([request(folder, "a", ignore_eos=True)])
        await outputs.next()
        monkeypatch.setattr("hy3.engine.engine.verify", None)

        async def drain() -> None:
            while True:
                await outputs.next()

        with pytest.raises(EngineFailure, match="not callable"):
            await drain()
        assert backend.status == "failed"
        with pytest.raises(EngineFailure):
            await backend.submit([request(folder, "b")])

    backend = with_backend(folder, work)
    assert isinstance(backend.error, TypeError)
    assert "the engine failed" in caplog.text


def test_a_checkpoint_that_does_not_load_fails_the_backend(tmp_path: Path) -> None:
    backend = NativeBackend(tmp_path, NativeOptions())

    async def main() -> None:
        backend.start()
        await until(lambda: backend.status == "failed")
        with pytest.raises(EngineFailure):
            await backend.submit([Request("a", (1,), SamplingParams(max_tokens=1))])
        await backend.close()

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))
    assert isinstance(backend.error, InputError)
    assert backend.stats() is None
