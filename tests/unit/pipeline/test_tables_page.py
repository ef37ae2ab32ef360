"""The reference of the tables has every table and every column, in their order, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antiphon.pipeline.schemas import KEYS, TABLES

PAGE = (Path(__file__).parents[3] / "docs/reference/tables.md").read_text()


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def listed(section: str) -> list[str]:
    """Names in the first column of the section's tables."""
    cells = re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_every_table_has_its_section_in_the_order_in_which_they_are_declared() -> None:
    named = [title.strip("`") for title in sections() if title.startswith("`")]
    assert named == list(TABLES)


def test_the_keys_are_all_there() -> None:
    assert listed(sections()["Keys"]) == list(KEYS)


@pytest.mark.parametrize("table", TABLES)
def test_the_columns_of_a_table_are_all_there(table: str) -> None:
    declared = [name for name in TABLES[table] if name not in KEYS]
    assert sorted(listed(sections()[f"`{table}`"])) == sorted(declared)
