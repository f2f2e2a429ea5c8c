"""Seeded BF16 weights of the distributions that the scale rules are judged on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

COLUMNS = 1024  # 64 groups a row


def _t(degrees: float, shape: tuple[int, int], g: torch.Generator) -> Tensor:
    chi = torch.empty(shape).normal_(generator=g).square_()
    for _ in range(int(degrees) - 1):
        chi += torch.empty(shape).normal_(generator=g).square_()
    return torch.randn(shape, generator=g) / (chi / degrees).sqrt()


def _laplace(shape: tuple[int, int], g: torch.Generator) -> Tensor:
    u = torch.rand(shape, generator=g, dtype=torch.float64) - 0.5
    return (-u.sign() * torch.log1p(-2 * u.abs())).float()


def _real_like(shape: tuple[int, int], g: torch.Generator) -> Tensor:
    """Row and column gains, a few outlier columns, dead rows, rare spikes."""
    rows, columns = shape
    w = 0.02 * torch.randn(shape, generator=g)
    w *= torch.exp(0.3 * torch.randn(rows, 1, generator=g))
    w *= torch.exp(0.3 * torch.randn(1, columns, generator=g))
    w[:, torch.randint(columns, (max(1, columns // 200),), generator=g)] *= 8
    w[torch.rand(rows, generator=g) < 0.03] = 0
    return torch.where(torch.rand(shape, generator=g) < 1e-5, w * 25, w)


def _tiny_groups(shape: tuple[int, int], g: torch.Generator) -> Tensor:
    """Group magnitudes over six decades, so that most scales sit at the low end."""
    w = torch.randn(shape, generator=g).unflatten(-1, (-1, 16))
    decades = -6 * torch.rand((*w.shape[:-1], 1), generator=g)
    return (w * 10**decades).flatten(-2)


def _lattice(shape: tuple[int, int], g: torch.Generator) -> Tensor:
    """Multiples of 1/8 up to 6: exact ties everywhere."""
    return torch.randint(-48, 49, shape, generator=g) / 8.0


def _saturated(shape: tuple[int, int], g: torch.Generator) -> Tensor:
    """Groups at the very top of the tensor's range, zero groups and signed zeros among them."""
    w = torch.randn(shape, generator=g).unflatten(-1, (-1, 16))
    w[..., 0] = 1568.0 * torch.randint(0, 2, w.shape[:-1], generator=g)
    w[torch.rand(w.shape[:-1], generator=g) < 0.2] = 0.0
    w[torch.rand(w.shape[:-1], generator=g) < 0.1] = -0.0
    return w.flatten(-2)


_MAKERS: dict[str, Callable[[tuple[int, int], torch.Generator], Tensor]] = {
    "gauss": lambda shape, g: torch.randn(shape, generator=g),
    "laplace": _laplace,
    "t4": lambda shape, g: _t(4, shape, g),
    "t2": lambda shape, g: _t(2, shape, g),
    "real-like": _real_like,
    "uniform": lambda shape, g: 2 * torch.rand(shape, generator=g) - 1,
    "lattice": _lattice,
    "tinygroups": _tiny_groups,
    "saturated": _saturated,
}
NAMES = tuple(_MAKERS)


def make_weight(name: str, groups: int, seed: int = 0) -> Tensor:
    """BF16 [groups / 64, 1024] of the named distribution."""
    generator = torch.Generator().manual_seed(seed)
    shape = (groups * 16 // COLUMNS, COLUMNS)
    return _MAKERS[name](shape, generator).to(torch.bfloat16)
