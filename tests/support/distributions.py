"""Seeded BF16 weights of the distributions that the scale rules are judged on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

COLUMNS = 1024  # 64 groups a row


def _normal(shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=g, device=g.device)


def _uniform(shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=g, device=g.device)


def _integers(low: int, high: int, shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    return torch.randint(low, high, shape, generator=g, device=g.device)


def _t(degrees: float, shape: tuple[int, int], g: torch.Generator) -> Tensor:
    chi = _normal(shape, g).square_()
    for _ in range(int(degrees) - 1):
        chi += _normal(shape, g).square_()
    return _normal(shape, g) / (chi / degrees).sqrt()


def _laplace(shape: tuple[int, int], g: torch.Generator) -> Tensor:
    u = torch.rand(shape, generator=g, dtype=torch.float64, device=g.device) - 0.5
    return (-u.sign() * torch.log1p(-2 * u.abs())).float()


def _real_like(shape: tuple[int, int], g: torch.Generator) -> Tensor:
    """Row and column gains, a few outlier columns, dead rows, rare spikes."""
    rows, columns = shape
    w = 0.02 * _normal(shape, g)
    w *= torch.exp(0.3 * _normal((rows, 1), g))
    w *= torch.exp(0.3 * _normal((1, columns), g))
    w[:, _integers(0, columns, (max(1, columns // 200),), g)] *= 8
    w[_uniform((rows,), g) < 0.03] = 0
    return torch.where(_uniform(shape, g) < 1e-5, w * 25, w)


def _tiny_groups(shape: tuple[int, int], g: torch.Generator) -> Tensor:
    """Group magnitudes over six decades, so that most scales sit at the low end."""
    w = _normal(shape, g).unflatten(-1, (-1, 16))
    decades = -6 * _uniform((*w.shape[:-1], 1), g)
    return (w * 10**decades).flatten(-2)


def _lattice(shape: tuple[int, int], g: torch.Generator) -> Tensor:
    """Multiples of 1/8 up to 6: exact ties everywhere."""
    return _integers(-48, 49, shape, g) / 8.0


def _saturated(shape: tuple[int, int], g: torch.Generator) -> Tensor:
    """Groups at the very top of the tensor's range, zero groups and signed zeros among them."""
    w = _normal(shape, g).unflatten(-1, (-1, 16))
    w[..., 0] = 1568.0 * _integers(0, 2, w.shape[:-1], g)
    w[_uniform(w.shape[:-1], g) < 0.2] = 0.0
    w[_uniform(w.shape[:-1], g) < 0.1] = -0.0
    return w.flatten(-2)


def _signed_patterns(magnitude: Tensor, g: torch.Generator) -> Tensor:
    """BF16 of 15-bit patterns, each with a random sign."""
    sign = _integers(0, 2, tuple(magnitude.shape), g)
    return (magnitude - 0x8000 * sign).to(torch.int16).view(torch.bfloat16)


def _patterns(shape: tuple[int, int], g: torch.Generator) -> Tensor:
    """Every finite pattern equally likely: all magnitudes side by side."""
    return _signed_patterns(_integers(0, 0x7F80, shape, g), g)


def _subnormal(shape: tuple[int, int], g: torch.Generator) -> Tensor:
    return _signed_patterns(_integers(0, 0x80, shape, g), g)


def _zero(shape: tuple[int, int], g: torch.Generator) -> Tensor:
    return _signed_patterns(torch.zeros(shape, dtype=torch.int64, device=g.device), g)


def _outlier(shape: tuple[int, int], g: torch.Generator) -> Tensor:
    """One weight so large that every other group sits at the lowest codes or below."""
    w = _normal(shape, g)
    w[0, 5] = 1e7
    return w


def _tiny_squares(shape: tuple[int, int], g: torch.Generator) -> Tensor:
    """Groups of 2^-86 to 2^-78 beside a 1: their squares are subnormal in fp32, or nothing.

    A fused product would keep bits that fp32 loses, a flush to zero lose those that it keeps.
    """
    w = _signed_patterns(_integers(41 << 7, 49 << 7, shape, g), g)
    w[0, 0] = 1.0
    return w


_MAKERS: dict[str, Callable[[tuple[int, int], torch.Generator], Tensor]] = {
    "gauss": _normal,
    "laplace": _laplace,
    "t4": lambda shape, g: _t(4, shape, g),
    "t2": lambda shape, g: _t(2, shape, g),
    "real-like": _real_like,
    "uniform": lambda shape, g: 2 * _uniform(shape, g) - 1,
    "lattice": _lattice,
    "tinygroups": _tiny_groups,
    "saturated": _saturated,
}
NAMES = tuple(_MAKERS)
_EDGE_MAKERS: dict[str, Callable[[tuple[int, int], torch.Generator], Tensor]] = {
    "patterns": _patterns,
    "subnormal": _subnormal,
    "zero": _zero,
    "outlier": _outlier,
    "tiny-squares": _tiny_squares,
}
EDGES = tuple(_EDGE_MAKERS)


def make_weight(name: str, groups: int, seed: int = 0, device: str = "cpu") -> Tensor:
    """BF16 [groups / 64, 1024] of the named distribution; another device draws other numbers."""
    generator = torch.Generator(device).manual_seed(seed)
    shape = (groups * 16 // COLUMNS, COLUMNS)
    return (_MAKERS | _EDGE_MAKERS)[name](shape, generator).to(torch.bfloat16)


def _spread(columns: int, g: torch.Generator) -> Tensor:
    """u^4: importances over many decades."""
    return torch.rand(columns, generator=g) ** 4


def _half_zero(columns: int, g: torch.Generator) -> Tensor:
    """Half of the columns do not count, some groups as a whole."""
    h = torch.rand(columns, generator=g) * torch.randint(0, 2, (columns,), generator=g)
    h.view(-1, 16)[torch.rand(columns // 16, generator=g) < 0.1] = 0
    return h


def _dominated(columns: int, g: torch.Generator) -> Tensor:
    """In each group one column outweighs all others by ten decades."""
    h = torch.rand(columns, generator=g) * 1e-10
    h.view(-1, 16).scatter_(1, torch.randint(0, 16, (columns // 16, 1), generator=g), 1.0)
    return h


_WEIGHT_MAKERS = {"spread": _spread, "half-zero": _half_zero, "dominated": _dominated}
WEIGHT_KINDS = tuple(_WEIGHT_MAKERS)


def make_column_weights(kind: str, columns: int, seed: int = 0) -> Tensor:
    """fp32 [columns], the seeded weights of the columns of a matrix."""
    return _WEIGHT_MAKERS[kind](columns, torch.Generator().manual_seed(seed))
