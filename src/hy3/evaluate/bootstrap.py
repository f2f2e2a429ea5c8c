"""Standard errors when the observations come in documents.

Tokens of one document are not independent, so whole documents are drawn with replacement.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000


def ratio_standard_error(
    sums: Sequence[float], weights: Sequence[float], seed: int = 0, resamples: int = RESAMPLES
) -> float | None:
    """Bootstrap standard error of ``sum(sums) / sum(weights)``; None for fewer than two documents.

    Args:
        sums: one total per document.
        weights: what each total is over, for example its number of tokens.
    """
    documents = len(sums)
    if documents < 2:
        return None
    drawn = np.random.default_rng(seed).integers(0, documents, size=(resamples, documents))
    totals = np.asarray(sums, dtype=np.float64)[drawn].sum(axis=1)
    ratios = totals / np.asarray(weights, dtype=np.float64)[drawn].sum(axis=1)
    return float(ratios.std(ddof=1))
