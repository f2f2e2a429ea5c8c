"""Weights as checkpoints store them, in any form, and what they decode to."""
