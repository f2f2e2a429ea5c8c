"""``WeightReader``: single weights of a checkpoint as torch tensors, quantized ones decoded."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hy3.checkpoint.reader import TensorReader
from hy3.errors import InputError
from hy3.stored.decode import decode
from hy3.stored.weight import find_weight

_PLAIN_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
_HINT = "hy3 loads BF16, NVFP4 and FP8 checkpoints; quantize from BF16"


class WeightReader:
    """Reads weights by their original names and puts them where the model wants them.

    Args:
        reader: the open checkpoint
        device: where the returned tensors lie
        dtype: of every returned weight; one that the checkpoint keeps in fp32 stays fp32
    """

    def __init__(
        self, reader: TensorReader, device: str | torch.device, dtype: torch.dtype
    ) -> None:
        self._reader = reader
        self._device = device
        self._dtype = dtype

    def weight(self, name: str, *shape: int) -> Tensor:
        """One weight in the model dtype."""
        return self.rows([name], *shape)

    def rows(self, names: list[str], *shape: int) -> Tensor:
        """Several weights one below the other, filling ``shape`` in order.

        Only one of them is in memory besides the result.
        """
        joined = torch.empty(shape, dtype=self._dtype, device=self._device)
        flat = joined.view(-1)
        start = 0
        for name in names:
            part = self._stored(name)
            stop = start + part.numel()
            if stop > flat.numel() or (len(names) == 1 and part.shape != joined.shape):
                raise self._misshapen(name, part, shape)
            flat[start:stop].copy_(part.flatten())
            start = stop
        if start != flat.numel():
            raise self._misshapen(names[-1], part, shape)
        return joined

    def full_precision(self, name: str, *shape: int) -> Tensor:
        """One weight in fp32, whatever the model dtype."""
        part = self._stored(name)
        if part.shape != shape:
            raise self._misshapen(name, part, shape)
        return part.to(device=self._device, dtype=torch.float32)

    def scalar(self, name: str, default: float) -> float:
        """A one-element tensor's value, or ``default`` where the checkpoint has none."""
        if name not in self._reader.checkpoint.tensors:
            return default
        part = self._plain(name)
        if part.numel() != 1:
            raise self._misshapen(name, part, (1,))
        return float(part)

    def _stored(self, name: str) -> Tensor:
        """The tensor on the CPU: as it is on disk, or decoded to bf16 if it is quantized there."""
        weight = find_weight(self._reader.checkpoint, name)
        if weight is not None:
            bits, _ = decode(self._reader, weight)
            return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
        if name in self._reader.checkpoint.tensors:
            return self._plain(name)
        raise InputError(
            "is missing from the checkpoint",
            hint="run `hy3 inspect` on the folder, then fetch what it lists",
            where=f"{self._reader.checkpoint.folder}: {name}",
        )

    def _plain(self, name: str) -> Tensor:
        info = self._reader.checkpoint.info(name)
        if info.dtype not in _PLAIN_DTYPES:
            raise InputError(
                f"has dtype {info.dtype}",
                hint=_HINT,
                where=f"{self._reader.checkpoint.folder}: {name}",
            )
        return torch.from_numpy(self._reader.array(name)).view(_PLAIN_DTYPES[info.dtype])

    def _misshapen(self, name: str, part: Tensor, shape: tuple[int, ...]) -> InputError:
        return InputError(
            f"has shape {list(part.shape)}, which does not fit into {list(shape)}",
            hint="config.json and the weights are of different models; fetch both again",
            where=f"{self._reader.checkpoint.folder}: {name}",
        )
