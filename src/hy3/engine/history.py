"""``TokenHistory``: which tokens a request has used, as the penalties need it; no torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class TokenHistory:
    """Vocabulary-wide marks of the prompt and counts of the output."""

    def __init__(self, prompt_ids: Sequence[int], vocab_size: int) -> None:
        self.in_prompt: NDArray[np.bool_] = np.zeros(vocab_size, dtype=np.bool_)
        self.in_prompt[list(prompt_ids)] = True
        self.output_counts: NDArray[np.float32] = np.zeros(vocab_size, dtype=np.float32)

    def add(self, token_ids: Sequence[int]) -> None:
        """Count tokens as output."""
        np.add.at(self.output_counts, list(token_ids), 1)

    def remove(self, token_ids: Sequence[int]) -> None:
        """Take back what ``add`` counted."""
        np.subtract.at(self.output_counts, list(token_ids), 1)
