"""The whole path on one small checkpoint, each step with a condition that it must meet."""
