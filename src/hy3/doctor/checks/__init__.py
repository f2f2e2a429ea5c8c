"""The checks, by what they look at; ``registry.py`` puts them together."""
