"""The order of the layers, read from the source: an import may only point downward.

And what every public name has: one home, a docstring, and where it is called a signature.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import GetSetDescriptorType, MemberDescriptorType

import pytest

from antiphon._core import InboxCore, NodeCore, PublisherCore

PACKAGE = Path(importlib.import_module("antiphon._version").__file__ or "").parent

# From the bottom up. Layers of one row do not know each other.
ROWS = [
    {"_core", "_version"},
    {"errors", "frozen", "process_lock", "toml_lines", "whole"},
    {"queueing", "settings"},
    {"wire"},
    {"node"},
    {"timing", "bulk"},
    {"topics"},
    {"groups"},  # finds its members as buses find each other
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


# The core's own methods, which instances have as attributes: their texts are those of the slots.
CORES = {"Inbox": InboxCore, "Publisher": PublisherCore}


def public_members() -> Iterator[tuple[str, str, object]]:
    """Class, name and member as it stands in the class, of everything that users may call or read.

    What is inherited from other packages is theirs to explain; plain values, such as the default
    of a setting, are explained by the class.
    """
    antiphon = importlib.import_module("antiphon")
    for public in antiphon.__all__:
        kind = getattr(antiphon, public)
        if not isinstance(kind, type):
            continue
        for name in dir(kind):
            home = next((base for base in kind.__mro__ if name in vars(base)), None)
            ours = home is not None and home.__module__.split(".")[0] == "antiphon"
            if name.startswith("_") or not ours:
                continue
            member = inspect.getattr_static(kind, name)
            if isinstance(member, MemberDescriptorType):  # a slot
                if callable(getattr(CORES.get(public), name, None)):
                    yield public, name, member
            elif callable(member) or isinstance(
                member, property | classmethod | staticmethod | GetSetDescriptorType
            ):
                yield public, name, member


def test_every_public_name_has_a_docstring() -> None:
    antiphon = importlib.import_module("antiphon")
    bare = [
        name
        for name in antiphon.__all__
        if isinstance(getattr(antiphon, name), type) and not getattr(antiphon, name).__doc__
    ]
    assert not bare


def test_every_public_method_has_a_docstring() -> None:
    members = list(public_members())
    named = {(kind, name) for kind, name, _ in members}
    # The most used ones come from the core: they are among those that are looked at.
    assert named >= {("Node", "send"), ("Inbox", "receive"), ("Publisher", "publish")}
    antiphon = importlib.import_module("antiphon")
    bare = [
        f"{kind}.{name}"
        for kind, name, _ in members
        if not inspect.getdoc(getattr(getattr(antiphon, kind), name))
    ]
    assert not bare


@pytest.mark.parametrize(
    ("core", "names"),
    [
        (NodeCore, "send try_send send_many send_packed"),
        (InboxCore, "receive receive_many"),
        (PublisherCore, "publish publish_many publish_packed"),
    ],
)
def test_calls_on_the_fast_path_say_whether_they_block_and_what_they_raise(
    core: type, names: str
) -> None:
    for name in names.split():
        text = inspect.getdoc(getattr(core, name)) or ""
        assert re.search(r"\b(Blocks|Never blocks)\b", text), name
        assert re.search(r"\b[Rr]aises\b", text), name
        assert max(map(len, text.splitlines())) <= 105, name


def test_every_public_method_has_a_signature() -> None:
    without = []
    for kind, name, member in public_members():
        if isinstance(member, MemberDescriptorType):
            member = getattr(CORES[kind], name)
        if callable(member):
            try:
                inspect.signature(member)
            except ValueError:
                without.append(f"{kind}.{name}")
    assert not without


@pytest.mark.parametrize(
    ("core", "name", "expected"),
    [
        (NodeCore, "send", "(self, target, message, *, kind=None)"),
        (NodeCore, "send_packed", "(self, target, data, offsets, *, kind)"),
        (InboxCore, "receive_many", "(self, most, timeout=None)"),
        (PublisherCore, "publish", "(self, data, properties=None, ttl=None)"),
    ],
)
def test_signatures_of_the_core_are_those_of_its_types(
    core: type, name: str, expected: str
) -> None:
    """Names and order as in _core.pyi, in which the first of several shapes may have one less."""
    assert str(inspect.signature(getattr(core, name))).replace("$self, /", "self") in (
        expected,
        expected.replace("self", "self, /"),
    )
    stub = ast.parse((PACKAGE / "_core.pyi").read_text())
    (body,) = (one for one in stub.body if getattr(one, "name", "") == core.__name__)
    shapes = [
        [one.arg for one in [*shape.args.args, *shape.args.kwonlyargs]]
        for shape in ast.walk(body)
        if isinstance(shape, ast.FunctionDef) and shape.name == name
    ]
    assert list(inspect.signature(getattr(core, name)).parameters) == max(shapes, key=len)
