"""Checkpoints on a model hub, through ``huggingface_hub``; nothing here needs torch."""
