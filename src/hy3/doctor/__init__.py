"""Preflight: what is wrong with machines, a checkpoint or an engine, before anything is loaded."""
