"""The OpenAI-compatible HTTP server; torch-free, it knows an engine only as ``backend.Backend``."""
