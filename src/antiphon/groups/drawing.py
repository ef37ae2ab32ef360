"""A stack as text, for people."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.groups.protocol import Layer

__all__ = ["draw"]


def draw(layers: Sequence[Layer]) -> str:
    """Boxes upon each other, the application on top."""
    rows = [("application", "")]
    for layer in reversed(layers):
        settings = ", ".join(f"{name}={value}" for name, value in layer.settings().items())
        rows.append((layer.name, settings))
    rows.append(("network", ""))
    left = max(len(name) for name, _ in rows)
    right = max(len(text) for _, text in rows)
    line = f"+-{'-' * left}-+-{'-' * right}-+"
    body = [f"| {name:<{left}} | {text:<{right}} |" for name, text in rows]
    return "\n".join([line, *(part for row in body for part in (row, line))])
