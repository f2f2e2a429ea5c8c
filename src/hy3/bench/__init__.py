"""Measuring an endpoint over HTTP: any OpenAI-compatible server, ours included."""
