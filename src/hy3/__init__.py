"""hy3: from BF16 Hy3 weights to a verified, tuned, OpenAI-compatible endpoint."""

__version__ = "0.1.0"
