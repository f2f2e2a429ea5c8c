"""Judging one model by another: distributions in memory now, tasks over HTTP later."""
