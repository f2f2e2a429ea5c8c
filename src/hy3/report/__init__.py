"""Turning results into what people read; knows no other part of the package."""
