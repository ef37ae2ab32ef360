"""The order of the layers, read from the source: an import may only point downward."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(importlib.import_module("antiphon._version").__file__ or "").parent

# From the bottom up. Layers of one row do not know each other.
ROWS = [
    {"_core", "_version"},
    {"errors", "frozen"},
    {"queueing", "settings"},
    {"wire"},
    {"node"},
    {"timing", "bulk"},
    {"topics", "groups"},
    {"broker"},
    {"antiphon"},  # the package's own __init__, which re-exports what lies below
    {"testing"},
    {"lab", "spark"},
    {"pipeline"},  # reads what the lab writes, and makes up campaigns like it
    {"cli"},
]
RANK = {layer: rank for rank, row in enumerate(ROWS) for layer in row}


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "antiphon"


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]):
        parts = ["antiphon", *path.relative_to(PACKAGE).with_suffix("").parts]
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports_of(module: str, path: Path) -> Iterator[tuple[int, str]]:
    """Line and target of every import of ours, inside functions as well."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "antiphon":
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the import with its full name"
            if node.module == "antiphon":
                for alias in node.names:
                    below = alias.name in RANK and alias.name != "antiphon"
                    yield node.lineno, f"antiphon.{alias.name}" if below else "antiphon"
            elif node.module and node.module.startswith("antiphon."):
                yield node.lineno, node.module


def test_every_module_belongs_to_a_layer() -> None:
    strays = [module for module, _ in modules() if layer_of(module) not in RANK]
    assert not strays, f"add {strays} to ROWS, or move them into a layer"


@pytest.mark.parametrize(
    ("module", "path"),
    [pytest.param(module, path, id=f"{module}{path.suffix}") for module, path in modules()],
)
def test_imports_point_downward_only(module: str, path: Path) -> None:
    own = layer_of(module)
    upward = [
        f"{path.name}:{line} imports {target}"
        for line, target in imports_of(module, path)
        if layer_of(target) != own and RANK[layer_of(target)] >= RANK[own]
    ]
    assert not upward, f"{own} may not import {upward}"


def test_only_the_spark_layer_knows_pyspark() -> None:
    allowed = {"spark", "pipeline"}
    for module, path in modules():
        if layer_of(module) in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not any(name.split(".")[0] == "pyspark" for name in names), path


def test_every_public_name_has_one_home() -> None:
    """A re-exported class or function is the object of exactly one module, whose __all__ names it.

    Packages pass names on; the home is the plain module at the end of the way.
    """
    antiphon = importlib.import_module("antiphon")
    assert len(antiphon.__all__) == len(set(antiphon.__all__))
    homes: dict[str, list[str]] = {name: [] for name in antiphon.__all__ if name != "__version__"}
    for module, path in modules():
        if path.suffix != ".py" or path.name == "__init__.py" or layer_of(module) == "cli":
            continue
        if RANK[layer_of(module)] > RANK["antiphon"]:
            continue
        for name in getattr(importlib.import_module(module), "__all__", []):
            if name in homes:
                homes[name].append(module)
    wrong = {name: found for name, found in homes.items() if len(found) != 1}
    assert not wrong, f"each needs exactly one module with it in __all__: {wrong}"
    for name, (home,) in homes.items():
        assert getattr(antiphon, name) is getattr(importlib.import_module(home), name)


def test_every_public_name_has_a_docstring() -> None:
    antiphon = importlib.import_module("antiphon")
    bare = [
        name
        for name in antiphon.__all__
        if isinstance(getattr(antiphon, name), type) and not getattr(antiphon, name).__doc__
    ]
    assert not bare
