"""``NativeBackend``: the engine in its own thread, behind the server's ``Backend`` protocol.

The event loop puts commands into a queue; the engine's thread takes them between steps and hands
each step's outputs back in one call. Nothing else is shared, apart from readings that are replaced
whole.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue

import torch

from hy3.chat.tokenizer import Tokenizer
from hy3.checkpoint.index import open_checkpoint
from hy3.deploy.mailbox import Abort, Add, Command, Mailbox, Stop, post
from hy3.deploy.native_plan import NativeOptions, NativePlan, Surroundings, resolve
from hy3.engine.engine import Engine
from hy3.engine.grammar import GrammarCompiler
from hy3.engine.request import Request, SamplingParams, StepOutput
from hy3.engine.stats import EngineStats
from hy3.errors import Hy3Error, InputError
from hy3.hardware.memory import available_bytes
from hy3.model.decoder import load_model
from hy3.server.backend import EngineFailure, Status

logger = logging.getLogger("hy3.engine")

# Other programs need memory too on a machine whose memory is not the accelerator's.
_CPU_CACHE_SHARE = 0.5
_CUDA_CACHE_SHARE = 0.9
_JOIN_SECONDS = 10.0
_WARM_UP_PROMPT = 8


def build(folder: Path, options: NativeOptions) -> tuple[Engine, NativePlan]:
    """Load a checkpoint onto the best device here and size the engine for what is left."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = Tokenizer(folder)
    model = load_model(folder, device)
    names = open_checkpoint(folder).tensors
    on_cuda = device == "cuda"
    around = Surroundings(
        config=model.config,
        has_kv_scales=any(name.endswith(".self_attn.k_scale") for name in names),
        free_bytes=torch.cuda.mem_get_info()[0] if on_cuda else available_bytes(),
        cache_share=_CUDA_CACHE_SHARE if on_cuda else _CPU_CACHE_SHARE,
    )
    plan = resolve(options, around)
    grammars = GrammarCompiler(
        folder / "tokenizer.json", tokenizer.eos_ids, model.config.vocab_size
    )
    return Engine(model, plan.engine, grammars, tokenizer.eos_ids), plan


class NativeBackend:
    """Loads in the background, then serves requests until closed.

    Attributes:
        plan: what the engine was built with; None while loading.
        error: why it failed; None otherwise.
    """

    def __init__(self, folder: Path, options: NativeOptions) -> None:
        self.plan: NativePlan | None = None
        self.error: BaseException | None = None
        self._folder = folder
        self._options = options
        self._status: Status = "loading"
        self._stats: EngineStats | None = None
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._mailboxes: dict[str, Mailbox] = {}  # by request id; the engine thread's own
        self._thread = threading.Thread(target=self._run, name="hy3-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def status(self) -> Status:
        """See ``Backend``."""
        return self._status

    @property
    def max_context(self) -> int:
        """See ``Backend``."""
        assert self.plan is not None, "not ready"
        return self.plan.engine.max_context

    def stats(self) -> EngineStats | None:
        """The counters after the latest step."""
        return self._stats

    def start(self) -> None:
        """Begin loading; must be called on the event loop that will submit."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def submit(self, requests: Sequence[Request]) -> Mailbox:
        """See ``Backend``."""
        mailbox = Mailbox(self._commands, tuple(request.id for request in requests))
        self._commands.put(Add(tuple(requests), mailbox))
        try:
            await mailbox.accepted
        except BaseException:
            mailbox.close()
            raise
        return mailbox

    async def close(self) -> None:
        """Stop the thread; a load that is under way is left to end with the process."""
        self._commands.put(Stop())
        if self._status != "loading":
            await asyncio.to_thread(self._thread.join, _JOIN_SECONDS)

    def _run(self) -> None:
        """The engine's thread, from loading to the end."""
        try:
            engine, self.plan = build(self._folder, self._options)
            _warm_up(engine)
            self._stats = engine.stats()
            self._status = "ready"
            self._serve(engine)
            self._tell_waiting(EngineFailure("the server is stopping"))
        except BaseException as error:  # a panic in a library is no Exception
            if not isinstance(error, Hy3Error):
                logger.error("the engine failed", exc_info=error)
            self.error, self._status = error, "failed"
            failure = EngineFailure(str(error))
            self._tell_waiting(failure)
            self._refuse(failure)

    def _serve(self, engine: Engine) -> None:
        """Step for as long as there is work, until told to stop."""
        while self._obey(engine):
            outputs = engine.step()
            self._stats = engine.stats()
            self._deliver(outputs)

    def _obey(self, engine: Engine) -> bool:
        """Carry out what came in since the last step; wait for it if there is nothing to do."""
        while not self._commands.empty() or not engine.has_work():
            match self._commands.get():
                case Add(requests, mailbox):
                    self._add(engine, requests, mailbox)
                case Abort(request_ids):
                    for request_id in request_ids:
                        engine.abort(request_id)
                case Stop():
                    return False
        return True

    def _add(self, engine: Engine, requests: tuple[Request, ...], mailbox: Mailbox) -> None:
        try:
            for request in requests:
                engine.add(request)
        except Exception as error:  # one request must not end the others
            for request in requests:
                engine.abort(request.id)
            if not isinstance(error, InputError):
                logger.error("a request failed to start", exc_info=error)
            self._call(mailbox.fail, error)
            return
        self._mailboxes.update((request.id, mailbox) for request in requests)
        self._call(mailbox.accept)

    def _deliver(self, outputs: Sequence[StepOutput]) -> None:
        """Hand over a step's outputs in one visit to the event loop."""
        letters = []
        for output in outputs:
            mailbox = self._mailboxes.get(output.request_id)
            if mailbox is not None:
                letters.append((mailbox, output))
            if output.finish_reason is not None:
                self._mailboxes.pop(output.request_id, None)
        if letters:
            self._call(post, letters)

    def _tell_waiting(self, failure: EngineFailure) -> None:
        for mailbox in set(self._mailboxes.values()):
            self._call(mailbox.fail, failure)

    def _refuse(self, failure: EngineFailure) -> None:
        """Answer what is submitted between the failure and the end of the server."""
        while True:
            match self._commands.get():
                case Add(_, mailbox):
                    self._call(mailbox.fail, failure)
                case Stop():
                    return

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Run ``function`` on the event loop; without one nobody is waiting any more."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)


def _warm_up(engine: Engine) -> None:
    """Compile what compiles on first use, and prove that a token comes out."""
    length = min(_WARM_UP_PROMPT, engine.config.max_context - 1)
    tokens = min(engine.config.draft_depth + 2, engine.config.max_context - length)
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    engine.add(Request("warm-up", tuple(range(length)), params))
    while engine.has_work():
        engine.step()
