"""``Recipe``: what becomes what, as ordered rules from a TOML file.

A rule names a class of tensors, or a regular expression that the whole name of a module must
match, and a format. The first rule that applies to a tensor counts:

    description = "What it is for."
    fp8_activations = "none"          # optional; what `--fp8-activations` overrides

    [[rules]]
    match = 'model\\.layers\\.[1-4]\\.mlp\\.experts\\..*'
    format = "copy"

    [[rules]]
    class = "routed_expert"
    format = "nvfp4"

    [[rules]]
    class = "*"
    format = "copy"
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from hy3.checkpoint.forms import FP8, FP8_BLOCK, NVFP4
from hy3.checkpoint.json_file import open_regular
from hy3.checkpoint.names import WEIGHT_CLASSES, module_of, tensor_class
from hy3.checkpoint.patterns import BadPatternError, check_pattern
from hy3.checkpoint.strict_json import shown
from hy3.errors import InputError

COPY = "copy"
FORMATS = (COPY, NVFP4, FP8, FP8_BLOCK)
ACTIVATIONS = ("none", "dynamic")
LM_HEADS = ("bf16", "fp8")
_ALL = "*"


@dataclass(frozen=True)
class Rule:
    """One line of a recipe; ``by`` is "class" or "match"."""

    by: str
    pattern: str
    format: str

    def applies(self, name: str) -> bool:
        """Whether a tensor falls under the rule."""
        if self.by == "match":
            return re.fullmatch(self.pattern, module_of(name)) is not None
        return self.pattern in (_ALL, tensor_class(name))

    def __str__(self) -> str:
        return f"{self.by} = {self.pattern!r}"


@dataclass(frozen=True)
class Recipe:
    """Rules, the last of which applies to every tensor, and what FP8 rules do to activations."""

    name: str
    description: str
    rules: tuple[Rule, ...]
    fp8_activations: str  # of ACTIVATIONS

    def rule_of(self, name: str) -> Rule:
        """The first rule that applies to a tensor."""
        return next(rule for rule in self.rules if rule.applies(name))

    def format_of(self, name: str) -> str:
        """Of FORMATS. Under dynamic activations FP8 is in blocks, lm_head apart."""
        form = self.rule_of(name).format
        dynamic = self.fp8_activations == "dynamic" and tensor_class(name) != "lm_head"
        return FP8_BLOCK if form == FP8 and dynamic else form

    @property
    def lm_head(self) -> str:
        """Of LM_HEADS."""
        return "bf16" if self.format_of("lm_head.weight") == COPY else "fp8"

    def with_options(self, fp8_activations: str | None, lm_head: str | None) -> Recipe:
        """Overridden by what the user asks for; None leaves what the recipe says."""
        changed = replace(self, fp8_activations=fp8_activations or self.fp8_activations)
        if lm_head is None or lm_head == self.lm_head:
            return changed
        rule = Rule("class", "lm_head", COPY if lm_head == "bf16" else FP8)
        return replace(changed, rules=(rule, *self.rules))

    def encode_rules(self) -> str:
        """The rules as one string for the manifest, from which ``decode_rules`` restores them."""
        return json.dumps([[rule.by, rule.pattern, rule.format] for rule in self.rules])


def decode_rules(name: str, rules: str, fp8_activations: str) -> Recipe:
    """The recipe of a manifest; InputError when that holds none."""
    try:
        items = json.loads(rules)
        table = [{by: pattern, "format": form} for by, pattern, form in items]
    except (ValueError, TypeError, RecursionError) as error:
        raise _fault(name, f"has rules that cannot be read ({error})") from error
    return _parse(name, {"rules": table, "fp8_activations": fp8_activations})


def recipe_names() -> list[str]:
    """The recipes that come with hy3."""
    files = resources.files("hy3.quantize").joinpath("recipes").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load_recipe(name: str) -> Recipe:
    """One of ``recipe_names``, or a path that ends in .toml; InputError for anything else."""
    if name in recipe_names():
        file = resources.files("hy3.quantize").joinpath("recipes", f"{name}.toml")
        return parse_recipe(name, file.read_text(encoding="utf-8"))
    if not name.endswith(".toml"):
        known = ", ".join(recipe_names())
        raise InputError(
            f"recipe {name!r} is unknown",
            hint=f"known are: {known}; or name a file that ends in .toml",
            where="--recipe",
        )
    path, hint = Path(name), "name a recipe or a TOML file"
    try:
        with open_regular(path) as opened:
            text = opened.read().decode("utf-8")
    except InputError as error:
        raise InputError(error.message, hint, where=name) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not text in UTF-8"
        raise InputError(f"cannot be read ({reason})", hint, where=name) from error
    return parse_recipe(path.stem, text)


def parse_recipe(name: str, text: str) -> Recipe:
    """Read and check the TOML; every fault is an InputError that names the recipe."""
    try:
        return _parse(name, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise _fault(name, f"is not valid TOML ({error})") from error
    except (RecursionError, ValueError) as error:  # nested too deep, or a number too long
        raise _fault(name, "is not valid TOML (nested too deep, or a number too long)") from error


def _parse(name: str, value: dict[str, Any]) -> Recipe:
    unknown = sorted(value.keys() - {"rules", "description", "fp8_activations"})
    if unknown:
        raise _fault(name, f"has the unknown key {shown(unknown[0])}")
    description = value.get("description", "")
    if not isinstance(description, str):
        raise _fault(name, "description must be text")
    activations = value.get("fp8_activations", "none")
    if activations not in ACTIVATIONS:
        raise _fault(name, f"fp8_activations must be one of {', '.join(ACTIVATIONS)}")
    tables = value.get("rules")
    if not isinstance(tables, list) or not tables:
        raise _fault(name, "must hold [[rules]]")
    rules = tuple(_rule(name, table) for table in tables)
    if (rules[-1].by, rules[-1].pattern) != ("class", _ALL):
        raise _fault(name, 'the last rule must name the class "*"')
    return Recipe(name, description, rules, activations)


def _rule(name: str, table: Any) -> Rule:
    keys = set(table) if isinstance(table, dict) else set()
    if keys not in ({"class", "format"}, {"match", "format"}):
        raise _fault(name, "a rule has the key class or match, the key format, and no other")
    by = "class" if "class" in table else "match"
    pattern, form = table[by], table["format"]
    if form not in FORMATS:
        raise _fault(name, f"format {shown(form)} is unknown: use {', '.join(FORMATS)}")
    if not isinstance(pattern, str):
        raise _fault(name, f"{by} must be text")
    if by == "class" and pattern not in (_ALL, *WEIGHT_CLASSES):
        known = ", ".join(WEIGHT_CLASSES)
        raise _fault(name, f'class {shown(pattern)} is unknown: use {known} or "*"')
    if by == "match":
        try:
            check_pattern(pattern)
        except BadPatternError as error:
            raise _fault(name, f"holds the bad pattern {error}") from error
    return Rule(by, pattern, form)


def _fault(name: str, message: str) -> InputError:
    return InputError(message, hint='docs/quantize.md, "Recipes"', where=f"recipe {name}")
