"""Checkpoints on disk: headers, index, bytes, names and configuration. Torch-free."""
