"""``ModelShape``: what memory and speed need to know of a checkpoint, from its headers alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from hy3.checkpoint.forms import stored_specs
from hy3.checkpoint.header import DTYPE_BYTES
from hy3.checkpoint.index import Checkpoint
from hy3.checkpoint.model_config import Hy3Config
from hy3.checkpoint.names import expected_tensors, is_mtp, layer_of, tensor_class
from hy3.errors import InputError
from hy3.plan.settings import KV_DTYPE_BYTES

ROUTED = "routed_expert"
# An input embedding is looked up, never read whole.
LOOKED_UP = ("embedding",)
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_WEIGHT_ENDS = (".weight", ".weight_packed")
_PACKED = {"U8", "I32", "F8_E4M3"}
# Integers of 4 or of 8 bits: the dtype of the words that hold them does not say which.
_UNTOLD = ("I32",)
_NO_WEIGHTS = ("expert_bias", "unknown")
_Key = tuple[str, bool]  # a class, and whether it is the MTP layer's


@dataclass(frozen=True)
class WeightClass:
    """All tensors of one class, in the trunk or in the MTP layer."""

    name: str
    mtp: bool
    parameters: int
    nbytes: int  # as stored
    forms: tuple[str, ...]  # dtypes as stored, packed formats included
    in_blocks: bool = False  # FP8 whose scales stand for blocks of 128 x 128

    @property
    def bytes_per_parameter(self) -> float:
        """Scales included."""
        return self.nbytes / self.parameters if self.parameters else 0.0


@dataclass(frozen=True)
class ModelShape:
    """Dimensions, and the stored bytes by class."""

    name: str
    vocab_size: int
    hidden_size: int
    layers: int
    mtp_layers: int
    dense_layers: int  # leading layers without experts
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    expert_size: int
    shared_size: int  # width of the shared expert
    dense_size: int
    max_positions: int  # the longest context that the model knows
    classes: tuple[WeightClass, ...]

    @property
    def nbytes(self) -> int:
        """Of all weights as stored."""
        return sum(each.nbytes for each in self.classes)

    @property
    def moe_layers(self) -> int:
        """Trunk layers with routed experts."""
        return self.layers - self.dense_layers

    def kv_bytes_per_token(self, dtype: str, mtp: bool) -> int:
        """Of all layers together; the MTP layer has a cache of its own when it drafts."""
        layers = self.layers + (self.mtp_layers if mtp else 0)
        return layers * 2 * self.kv_heads * self.head_dim * KV_DTYPE_BYTES[dtype]


def shape_of(name: str, checkpoint: Checkpoint, config: Hy3Config) -> ModelShape:
    """The shape of an opened checkpoint, whose headers may have come from anywhere.

    A checkpoint that lost its MTP layer, as some converters leave it, has none.

    Raises:
        InputError: the shards hold another number of weights than config.json describes.
    """
    stored = _stored(checkpoint, config)
    if not any(mtp for _, mtp in stored.sizes()):
        config = replace(config, num_mtp_layers=0)
    _refuse_other_counts(name, stored.weights(), _parameters(config))
    return _shape(name, config, stored.counted(config))


def shape_of_forms(name: str, config: Hy3Config, forms: Mapping[str, str]) -> ModelShape:
    """The shape of a checkpoint that is not made yet.

    Args:
        forms: weight name -> what it would be stored as, see ``hy3.checkpoint.forms``
    """
    classes = _Stored(config)
    for weight, spec in expected_tensors(config).items():
        for stored in stored_specs(spec, forms[weight]):
            classes.add(stored.name, stored.dtype, stored.shape, stored.nbytes)
    return _shape(name, config, classes.counted(config))


def _shape(name: str, config: Hy3Config, classes: tuple[WeightClass, ...]) -> ModelShape:
    return ModelShape(
        name=name,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=config.num_layers,
        mtp_layers=config.num_mtp_layers,
        dense_layers=config.num_dense_layers,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        experts=config.num_experts,
        experts_per_token=config.experts_per_token,
        expert_size=config.expert_size,
        shared_size=config.shared_expert_size,
        dense_size=config.intermediate_size,
        max_positions=config.max_positions,
        classes=classes,
    )


def decoded(shape: ModelShape) -> ModelShape:
    """What an engine holds that makes BF16 of packed weights while it loads them."""
    return replace(
        shape,
        classes=tuple(
            replace(each, nbytes=2 * each.parameters, forms=("BF16",), in_blocks=False)
            if set(each.forms) & _PACKED
            else each
            for each in shape.classes
        ),
    )


def _stored(checkpoint: Checkpoint, config: Hy3Config) -> _Stored:
    stored = _Stored(config)
    for header in checkpoint.headers.values():
        for name, dtype, shape, start, end in header.tensors.values():
            stored.add(name, dtype, shape, end - start)
    return stored


def _refuse_other_counts(
    name: str, found: Mapping[_Key, int | None], wanted: Mapping[_Key, int]
) -> None:
    """Files of one model beside the config of another would be planned without a word."""
    for key in sorted(found.keys() | wanted.keys()):
        kind, mtp = key
        held, described = found.get(key, 0), wanted.get(key, 0)
        if kind in _NO_WEIGHTS or held is None or held == described:
            continue
        raise InputError(
            f"the shards hold {held} weights of {kind}{' (MTP)' if mtp else ''}, "
            f"config.json describes {described}",
            hint="hy3 inspect lists what is missing or of another size; fetch both from one place",
            where=name,
        )


class _Stored:
    """Sums up stored tensors by class."""

    def __init__(self, config: Hy3Config) -> None:
        self.mtp_prefix = f"model.layers.{config.num_layers}."
        # By name with every digit a zero, dtype, and whether of the MTP layer: there are 100,000
        # names but few of these. As bytes, which are translated ten times as fast.
        self._sizes: dict[tuple[bytes, str, bool], int] = {}
        self._in_blocks: set[_Key] = set()

    def add(self, name: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> None:
        """Count one tensor."""
        key = (name.encode().translate(_ZEROS), dtype, name.startswith(self.mtp_prefix))
        before = self._sizes.get(key)
        if before is None and _scales_blocks(name, dtype, shape):
            self._in_blocks.add((tensor_class(name), key[2]))
        self._sizes[key] = (before or 0) + nbytes

    def sizes(self) -> Counter[_Key]:
        """Bytes of each class."""
        found: Counter[_Key] = Counter()
        for (zeroed, _, mtp), nbytes in self._sizes.items():
            found[tensor_class(zeroed.decode()), mtp] += nbytes
        return found

    def weights(self) -> dict[_Key, int | None]:
        """Weights of each class, scales not counted; None where the dtype does not tell."""
        found: dict[_Key, int | None] = {}
        for (zeroed, dtype, mtp), nbytes in self._sizes.items():
            name = zeroed.decode()
            if not name.endswith(_WEIGHT_ENDS):
                continue
            key = (tensor_class(name), mtp)
            before = found.get(key, 0)
            count = 2 * nbytes if dtype == "U8" else nbytes // DTYPE_BYTES[dtype]
            found[key] = None if dtype in _UNTOLD or before is None else before + count
        return found

    def counted(self, config: Hy3Config) -> tuple[WeightClass, ...]:
        """The classes, largest first."""
        forms: dict[_Key, set[str]] = {}
        for zeroed, dtype, mtp in self._sizes:
            name = zeroed.decode()
            if name.endswith(_WEIGHT_ENDS):
                forms.setdefault((tensor_class(name), mtp), set()).add(dtype)
        parameters = _parameters(config)
        return tuple(
            WeightClass(
                name=key[0],
                mtp=key[1],
                parameters=parameters[key],
                nbytes=size,
                forms=tuple(sorted(forms.get(key, ()))),
                in_blocks="F8_E4M3" in forms.get(key, ()) and key in self._in_blocks,
            )
            for key, size in sorted(self.sizes().items(), key=lambda item: -item[1])
        )


def _scales_blocks(name: str, dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether FP8 weights beside such scales are in blocks: rows have one each, NVFP4's are in FP8.

    A matrix of one block across is told by the others of its class, which are wider.
    """
    scale = name.endswith((".weight_scale", ".weight_scale_inv"))
    return scale and dtype != "F8_E4M3" and prod(shape[1:]) > 1


def _parameters(config: Hy3Config) -> Counter[_Key]:
    """Elements of the model by class, however they are stored; layers of a kind are equal."""
    counts: Counter[_Key] = Counter()
    few = replace(config, num_layers=config.num_dense_layers + 1)
    for name, spec in expected_tensors(few).items():
        layer = layer_of(name)
        repeats = config.num_layers - few.num_layers + 1 if layer == few.num_layers - 1 else 1
        elements = spec.nbytes // DTYPE_BYTES[spec.dtype]
        counts[tensor_class(name), is_mtp(name, few)] += repeats * elements
    return counts
