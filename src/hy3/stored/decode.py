"""The parts of a ``StoredWeight``, read, checked and decoded to BF16.

Products are made in fp32 and rounded to BF16 once. NVFP4 of ours loses nothing by that, because
its tensor scales are powers of two; FP8 does, as nearly every product has more bits than BF16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from hy3.checkpoint.forms import FP8_FORMS, MODELOPT_NVFP4, parts_of, tile_of
from hy3.checkpoint.reader import TensorReader
from hy3.errors import InputError
from hy3.kernels.fp8_decode import decode_fp8
from hy3.kernels.nvfp4_decode import decode_to_bf16
from hy3.nvfp4.codec import E4M3_NAN, decode_e4m3
from hy3.stored.weight import StoredWeight

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]


def decode(
    reader: TensorReader, weight: StoredWeight, codes: Bytes | None = None
) -> tuple[NDArray[np.uint16], int]:
    """BF16 patterns [out, in], and how many values BF16 had to round.

    Args:
        codes: the bytes of the first part, where they were read already

    Raises:
        InputError: a part is missing, or holds what no scale can be.
    """
    if weight.form in FP8_FORMS:
        values, scales = read_fp8(reader, weight, codes)
        if np.any(values & 0x7F == E4M3_NAN):
            raise _unusable(reader, weight.names[0], "holds NaN")
        return decode_parts(weight.form, (values, scales))
    packed, group_codes, tensor_scale, _ = _read_nvfp4(reader, weight, codes)
    return decode_parts(weight.form, (packed, group_codes, np.array(tensor_scale)))


def decode_parts(form: str, parts: Sequence[NDArray[Any]]) -> tuple[NDArray[np.uint16], int]:
    """As ``decode``, of parts in the order of their form that are known to be sound.

    Scales of FP8 are fp32 [tiles down, tiles across].
    """
    if form in FP8_FORMS:
        codes, scales = parts
        return decode_fp8(codes, scales, tile_of(codes.shape, form))
    packed, group_codes, stored_scale = parts
    group_scales = decode_e4m3(torch.from_numpy(group_codes)).numpy()
    scale = np.float32(stored_scale.reshape(-1)[0])
    steps = group_scales * scale if form == MODELOPT_NVFP4 else group_scales / scale
    return decode_to_bf16(packed, steps)


def read_fp8(
    reader: TensorReader, weight: StoredWeight, codes: Bytes | None = None
) -> tuple[Bytes, Floats]:
    """E4M3 patterns [out, in] and fp32 scales [tiles down, tiles across]; see ``decode``."""
    codes, stored = _parts(reader, weight, codes)
    scales = stored.astype(np.float32)
    if reader.checkpoint.info(weight.names[1]).dtype == "BF16":
        scales = (stored.astype(np.uint32) << 16).view(np.float32)
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise _unusable(reader, weight.names[1], "holds a scale that is not positive and finite")
    rows, columns = weight.spec.shape
    tile = tile_of(weight.spec.shape, weight.form)
    return codes, scales.reshape(-(-rows // tile[0]), -(-columns // tile[1]))


def read_nvfp4(reader: TensorReader, weight: StoredWeight) -> tuple[Bytes, Bytes, float]:
    """Packed values, scale codes and the tensor scale as a multiplier; see ``decode``."""
    packed, codes, tensor_scale, divides = _read_nvfp4(reader, weight)
    value = float(tensor_scale)
    return packed, codes, 1.0 / value if divides else value


def _read_nvfp4(
    reader: TensorReader, weight: StoredWeight, packed: Bytes | None = None
) -> tuple[Bytes, Bytes, np.float32, bool]:
    packed, codes, tensor_scale = _parts(reader, weight, packed)
    if (codes & 0x7F == E4M3_NAN).any():
        raise _unusable(reader, weight.names[1], "holds a scale that is NaN")
    value = np.float32(tensor_scale.reshape(-1)[0])
    if not (np.isfinite(value) and value > 0):
        raise _unusable(reader, weight.names[2], "holds a scale that is not positive and finite")
    return packed, codes, value, weight.form != MODELOPT_NVFP4


def _parts(reader: TensorReader, weight: StoredWeight, codes: Bytes | None) -> list[NDArray[Any]]:
    checkpoint = reader.checkpoint
    for part in parts_of(weight.spec, weight.form):
        if part.name not in checkpoint.tensors:
            raise _fault(reader, part.name, "is missing from the checkpoint")
        if not part.accepts(checkpoint.info(part.name)):
            raise _fault(reader, part.name, "has a dtype or shape that its weight cannot have")
    first, *scales = weight.names
    if codes is None:
        codes = reader.read(first)
    shape = checkpoint.info(first).shape
    return [codes.reshape(shape), *(reader.array(name) for name in scales)]


def _unusable(reader: TensorReader, name: str, message: str) -> InputError:
    return _error(message, f"{reader.checkpoint.path(name)}: tensor {name!r}")


def _fault(reader: TensorReader, name: str, message: str) -> InputError:
    return _error(message, f"{reader.checkpoint.folder}: {name}")


def _error(message: str, where: str) -> InputError:
    hint = "hy3 verify says what is wrong with the checkpoint"
    return InputError(message, hint=hint, where=where)
