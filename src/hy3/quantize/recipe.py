"""``Recipe``: which class of tensors gets which format, as ordered rules from a TOML file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources

from hy3.errors import InputError

NVFP4, COPY = "nvfp4", "copy"
# The exported quantization_config describes routed experts, so only they may be packed.
_PACKABLE = ("routed_expert",)


@dataclass(frozen=True)
class Recipe:
    """Rules (class or "*", format); the first that names a class counts."""

    name: str
    rules: tuple[tuple[str, str], ...]

    def format_of(self, tensor_class: str) -> str:
        """``"nvfp4"`` or ``"copy"``; parsing has made sure that a rule for every class exists."""
        return next(form for kind, form in self.rules if kind in (tensor_class, "*"))


def recipe_names() -> list[str]:
    """The recipes that come with hy3."""
    files = resources.files("hy3.quantize").joinpath("recipes").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load_recipe(name: str) -> Recipe:
    """One of ``recipe_names``; InputError listing them for another name."""
    if name not in recipe_names():
        known = ", ".join(recipe_names())
        raise InputError(
            f"recipe {name!r} is unknown", hint=f"known are: {known}", where="--recipe"
        )
    file = resources.files("hy3.quantize").joinpath("recipes", f"{name}.toml")
    return parse_recipe(name, file.read_text(encoding="utf-8"))


def parse_recipe(name: str, text: str) -> Recipe:
    """Read and check the TOML; every fault is an InputError that names the recipe."""
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _fault(name, f"is not valid TOML ({error})") from error
    rules = value.get("rules")
    if set(value) != {"rules"} or not isinstance(rules, list) or not rules:
        raise _fault(name, "must hold [[rules]] and nothing else")
    parsed = []
    for rule in rules:
        if not isinstance(rule, dict) or set(rule) != {"class", "format"}:
            raise _fault(name, "a rule has the keys class and format, no more and no fewer")
        if rule["format"] not in (NVFP4, COPY):
            raise _fault(name, f"format {rule['format']!r} is unknown: use {NVFP4} or {COPY}")
        if rule["format"] == NVFP4 and rule["class"] not in _PACKABLE:
            raise _fault(name, f"{NVFP4} is for {', '.join(_PACKABLE)}, not {rule['class']!r}")
        parsed.append((rule["class"], rule["format"]))
    if parsed[-1][0] != "*":
        raise _fault(name, 'the last rule must name the class "*"')
    return Recipe(name, tuple(parsed))


def _fault(name: str, message: str) -> InputError:
    return InputError(message, hint="see recipes/experts-nvfp4.toml", where=f"recipe {name}")
