"""``StoredWeight``: the tensors that stand for one weight that is quantized; from headers only."""

from __future__ import annotations

from dataclasses import dataclass

from hy3.checkpoint.census import Census
from hy3.checkpoint.forms import BF16, form_of, parts_of
from hy3.checkpoint.header import TensorSpec
from hy3.checkpoint.index import Checkpoint
from hy3.checkpoint.model_config import Hy3Config
from hy3.checkpoint.names import expected_tensors, module_of


@dataclass(frozen=True)
class StoredWeight:
    """One quantized weight: its BF16 spec [out, in] and its form."""

    spec: TensorSpec
    form: str

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tensors that it consists of, the largest first."""
        return tuple(part.name for part in parts_of(self.spec, self.form))


def stored_weights(config: Hy3Config, census: Census) -> dict[str, StoredWeight]:
    """The quantized weights of a checkpoint, by the names of the tensors that hold their codes."""
    weights = (
        StoredWeight(spec, census.forms[name])
        for name, spec in expected_tensors(config).items()
        if census.forms[name] != BF16
    )
    return {weight.names[0]: weight for weight in weights}


def find_weight(checkpoint: Checkpoint, name: str) -> StoredWeight | None:
    """The quantized weight behind ``P.weight``; None when it is BF16 or not there."""
    module = module_of(name)
    codes = next(
        (each for each in (f"{module}.weight_packed", name) if each in checkpoint.tensors), None
    )
    if codes is None:
        return None
    info = checkpoint.info(codes)
    columns = 2 if info.dtype == "U8" else 1
    if len(info.shape) != 2:
        return None
    spec = TensorSpec(name, "BF16", (info.shape[0], info.shape[1] * columns))
    form = form_of(spec, lambda each: checkpoint.info(each) if each in checkpoint.tensors else None)
    return None if form == BF16 else StoredWeight(spec, form)
