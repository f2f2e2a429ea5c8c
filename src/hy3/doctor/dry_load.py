"""Lets the real vLLM build a checkpoint's model and fill it, without reading a byte of its data.

A script by itself: the engine's own Python runs it; it imports nothing of hy3. The model is built
on PyTorch's meta device, where tensors have shape and dtype and no memory, and every tensor of the
index is handed to the loader in the same way. What the loader never touches was skipped; a
parameter that fewer elements were copied to than it has would hold chance.

    python dry_load.py FOLDER

Prints one JSON object: the engine and its version, the device, what it refused (null when nothing
was), tensors that were skipped, parameters that were not filled.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_TYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
}
_SHOWN = 5


class Watch(TorchDispatchMode):  # type: ignore[misc]
    """Sees which stored tensors are used, and how many elements each parameter receives."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[int, tuple[str, torch.Tensor]] = {}  # kept, so that no id comes twice
        self.used: set[str] = set()
        self.received: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at the tensors of one operation, then do it."""
        for each in tree_leaves((args, kwargs)):
            if isinstance(each, torch.Tensor) and identity(each) in self.stored:
                self.used.add(self.stored[identity(each)][0])
        if func is torch.ops.aten.copy_.default:
            self.received[identity(args[0])] += args[0].numel()
        return func(*args, **(kwargs or {}))

    def tensors(self, folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and an empty tensor of the stored shape and dtype, for everything in the folder."""
        for path in sorted(folder.glob("*.safetensors")):
            for name, entry in header(path).items():
                value = torch.empty(entry["shape"], dtype=_TYPES[entry["dtype"]], device="meta")
                self.stored[identity(value)] = (name, value)
                yield name, value

    def report(self, model: torch.nn.Module) -> list[str]:
        """Parameters of a model that are not filled."""
        return [
            name
            for name, value in model.named_parameters()
            if self.received[identity(value)] < value.numel()
        ]


def identity(tensor: torch.Tensor) -> int:
    """The same for a tensor and its views."""
    return int(tensor.untyped_storage()._cdata)


def header(path: Path) -> dict[str, Any]:
    """Of a safetensors file: name -> dtype and shape."""
    with path.open("rb") as stream:
        (size,) = struct.unpack("<Q", stream.read(8))
        entries = json.loads(stream.read(size))
    entries.pop("__metadata__", None)
    return dict(entries)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return int(each.getsockname()[1])


def load(folder: Path, has_draft: bool, said: dict[str, Any]) -> None:
    """Build trunk and draft, fill both, and write down what was left over."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform

    said["device"] = str(current_platform.device_name)
    draft = {"method": "mtp", "num_speculative_tokens": 1} if has_draft else None
    arguments = EngineArgs(model=str(folder), enforce_eager=True, speculative_config=draft)
    config = arguments.create_engine_config()
    watch = Watch()
    with set_current_vllm_config(config):
        address = f"tcp://127.0.0.1:{free_port()}"
        init_distributed_environment(1, 0, address, 0, current_platform.dist_backend)
        ensure_model_parallel_initialized(1, 1)
        wanted = [config.model_config]
        if config.speculative_config:
            wanted.append(config.speculative_config.draft_model_config)
        torch.set_default_dtype(config.model_config.dtype)
        for each in wanted:
            with torch.device("meta"):
                model = initialize_model(vllm_config=config, model_config=each)
            said["parameters"] += sum(1 for _ in model.parameters())
            with watch:
                model.load_weights(watch.tensors(folder))
            said["unfilled"] += watch.report(model)
    names = {name for name, _ in watch.stored.values()}
    said["tensors"] = len(names)
    said["skipped"] = sorted(names - watch.used)


def one_line(error: BaseException) -> str:
    """The message of an error, in one line."""
    text = re.sub(r"\s+", " ", str(error)).strip()
    return f"{type(error).__name__}: {text}"[:400]


def main() -> None:
    folder = Path(sys.argv[1])
    # The engine logs to standard output; the answer is to be alone there.
    answer = os.dup(1)
    os.dup2(2, 1)
    said: dict[str, Any] = {
        "engine": None,
        "device": None,
        "refused": None,
        "parameters": 0,
        "tensors": 0,
        "unfilled": [],
        "skipped": [],
    }
    try:
        import vllm

        said["engine"] = f"vLLM {vllm.__version__}"
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        load(folder, bool(config.get("num_nextn_predict_layers")), said)
    except Exception as error:  # whatever an engine raises is its answer
        said["refused"] = one_line(error)
    for key in ("unfilled", "skipped"):
        said[f"{key}_count"] = len(said[key])
        said[key] = said[key][:_SHOWN]
    os.write(answer, (json.dumps(said) + "\n").encode())


if __name__ == "__main__":
    main()
