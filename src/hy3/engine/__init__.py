"""The native engine: continuous batching with drafts over token ids. It never sees text."""
