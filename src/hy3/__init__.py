"""hy3: from BF16 Hy3 weights to a verified, OpenAI-compatible endpoint."""

__version__ = "0.1.0"
