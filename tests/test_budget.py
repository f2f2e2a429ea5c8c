"""The house rules that a reader relies on: lengths, docstrings, annotations, import contract."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "hy3"
FILES = sorted(SOURCE.rglob("*.py"))

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
# (file, function or "") -> why it may be longer.
LENGTH_EXCEPTIONS: dict[tuple[str, str], str] = {}

# Packages and files that may import torch at all; everything else is torch-free.
TORCH_ALLOWED = (
    "nvfp4/",
    "fp8/",
    "stored/decode.py",
    "model/",
    "kernels/",
    "engine/",
    "evaluate/divergence.py",
    "deploy/native.py",
    # Scripts by themselves, run by an engine's Python.
    "doctor/all_reduce.py",
    "doctor/dry_load.py",
    "doctor/gpu_load.py",
)

# package -> the hy3 packages, or modules of one, that it may import besides itself, errors and
# units; docs/architecture.md has the same table.
MAY_IMPORT: dict[str, set[str]] = {
    "checkpoint": set(),
    "nvfp4": set(),
    "fp8": {"nvfp4"},
    "kernels": {"nvfp4", "fp8"},
    "stored": {"checkpoint", "nvfp4", "kernels"},
    "quantize": {"nvfp4", "stored", "checkpoint", "kernels", "chat", "hardware", "report"},
    "model": {"kernels", "nvfp4", "checkpoint", "stored"},
    "engine": {"model", "kernels", "nvfp4", "checkpoint"},
    "chat": {"checkpoint"},
    "server": {"chat", "checkpoint", "engine.request", "engine.stats"},
    "deploy": {"engine", "model", "checkpoint", "chat", "hardware", "server", "plan", "nodes"},
    "bench": {"report"},
    "evaluate": {"model", "checkpoint", "chat", "bench", "report"},
    "report": set(),
    "hardware": set(),
    "plan": {"checkpoint", "hardware"},
    "hub": {"checkpoint"},
    "nodes": set(),
    "doctor": {"checkpoint", "chat", "hardware", "nodes", "plan", "quantize.check_layout"},
    "demo": {"bench", "chat", "evaluate", "model"},
}


def imports_of(path: Path) -> list[tuple[str, int]]:
    """Every module imported anywhere in the file, with its line."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append((node.module, node.lineno))
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def may_import(package: str, module: str) -> bool:
    """Whether the contract lets ``package`` import ``module``, named without ``hy3.``."""
    return any(f"{module}.".startswith(f"{allowed}.") for allowed in MAY_IMPORT[package])


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_lengths(path: Path) -> None:
    name = relative(path)
    text = path.read_text(encoding="utf-8")
    if (name, "") not in LENGTH_EXCEPTIONS:
        assert text.count("\n") <= MAX_FILE_LINES, f"{name} is too long"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            allowed = (name, node.name) in LENGTH_EXCEPTIONS
            assert allowed or length <= MAX_FUNCTION_LINES, f"{name}:{node.name} has {length} lines"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_docstrings_and_annotations(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{relative(path)} has no module docstring"
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        bare = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
        jitted = any("njit" in ast.unparse(decorator) for decorator in node.decorator_list)
        assert jitted or (not bare and node.returns), f"{relative(path)}:{node.lineno} {node.name}"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_import_contract(path: Path) -> None:
    name = relative(path)
    package = name.partition("/")[0] if "/" in name else ""
    for module, line in imports_of(path):
        top, _, rest = module.partition(".")
        if top == "torch":
            assert name.startswith(TORCH_ALLOWED), f"{name}:{line} imports torch"
        if top != "hy3" or not rest or package in ("", "cli"):
            continue
        if rest.partition(".")[0] in ("errors", "units", "__version__", package):
            continue
        assert may_import(package, rest), f"{name}:{line} imports {module}"
        if name != "deploy/native.py" and module.startswith("hy3.engine.engine"):
            assert package == "engine", f"{name}:{line}: only deploy/native.py builds an engine"


def test_mypy_reads_every_file_that_needs_no_torch() -> None:
    """A new file is checked by itself; only a whole package that may import torch is left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    options = project["tool"]["mypy"]
    assert options["strict"] and options["files"] == ["src/hy3"]
    left_out = {place.removeprefix("^src/hy3/") for place in options["exclude"]}
    assert left_out <= {place for place in TORCH_ALLOWED if place.endswith("/")}
    assert not [each for each in project["tool"]["mypy"]["overrides"] if "ignore_errors" in each]
    assert "\t$(BIN)/mypy\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_import_contract_stands_in_the_docs() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("| package | may import")[2].partition("\n\n")[0]
    documented = {}
    for row in table.splitlines()[2:]:
        packages, allowed = row.strip("|").split("|")
        for package in re.findall(r"`([\w.]+)`", packages):
            documented[package] = set(re.findall(r"`([\w.]+)`", allowed.partition(";")[0]))
    assert documented.pop("cli") == set()
    assert documented == MAY_IMPORT


def test_exceptions_are_still_needed() -> None:
    importers = [
        relative(path)
        for path in FILES
        if any(module.partition(".")[0] == "torch" for module, _ in imports_of(path))
    ]
    for place in TORCH_ALLOWED:
        assert any(name.startswith(place) for name in importers), f"{place} needs no torch"
    for (name, function), reason in LENGTH_EXCEPTIONS.items():
        assert reason, f"{name}:{function} has no reason"
        assert (SOURCE / name).exists(), f"{name} is gone; drop its exception"


def test_checks_catch_planted_faults(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("import torch.nn\nfrom hy3.engine.engine import Engine\n")
    assert [module for module, _ in imports_of(planted)] == [
        "torch.nn",
        "hy3.engine.engine",
        "hy3.engine.engine.Engine",
    ]
    assert may_import("server", "engine.request.Request")
    assert not may_import("server", "engine.requests")
    assert not may_import("server", "engine.engine.Engine")


def test_basenames_of_tests_are_unique() -> None:
    """Without packages pytest imports test files by their bare names."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
