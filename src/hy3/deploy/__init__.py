"""Putting a model to work: the native engine's build and loop."""
