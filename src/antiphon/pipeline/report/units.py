"""Numbers and keys as people read them."""

from __future__ import annotations

from typing import Any

__all__ = ["cell", "key_text", "plural", "rate", "share", "si", "size", "span", "speed", "took"]

_GAP = "\u00a0"
"""Between a number and its unit, which stay on one line."""

_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_UNLOADED = "none"


def _short(value: float) -> str:
    """Three digits that count, never an exponent."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.3g}"
    return f"{value:.2f}" if size >= 0.995 else f"{value:.2g}"


def si(value: float, unit: str) -> str:
    """1234567.0, "B/s" → "1.23 MB/s"."""
    for factor, letter in _LARGE:
        if abs(value) >= 0.9995 * factor:
            return f"{_short(value / factor)}{_GAP}{letter}{unit}"
    return f"{_short(value)}{_GAP}{unit}"


def speed(bytes_per_second: float | None) -> str:
    return "—" if bytes_per_second is None else si(bytes_per_second, "B/s")


def rate(per_second: float | None) -> str:
    """Messages a second."""
    if per_second is None:
        return "—"
    if per_second >= 1e6:
        return f"{_short(per_second / 1e6)}{_GAP}million/s"
    return f"{_short(per_second)}/s"


def took(us: float | None) -> str:
    """A time that was given in microseconds."""
    if us is None:
        return "—"
    if abs(us) >= 999_500:
        return f"{_short(us / 1e6)}{_GAP}s"
    if abs(us) >= 999.5:
        return f"{_short(us / 1e3)}{_GAP}ms"
    return f"{_short(us)}{_GAP}µs"


def share(part: float | None) -> str:
    """A fraction in percent; one digit more where it is small."""
    if part is None:
        return "—"
    percent = 100 * part
    return f"{percent:.1f}{_GAP}%" if 0 < abs(percent) < 9.95 else f"{percent:.0f}{_GAP}%"


def span(low: float, high: float) -> str:
    """Two fractions: "88 to 95 %"."""
    return f"{share(low).removesuffix(_GAP + '%')} to {share(high)}"


def size(count: int) -> str:
    """Bytes, in the unit in which the number is a round one."""
    for factor, unit in ((1 << 20, "MiB"), (10**6, "MB"), (1 << 10, "KiB"), (10**3, "kB")):
        if count >= factor and count % factor == 0:
            return f"{count // factor}{_GAP}{unit}"
    return f"{count:,}{_GAP}B"


def plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def key_text(key: str, value: Any) -> str:
    """What one key says of a measurement: "4 nodes", "2 kB", "no load"."""
    if value is None:
        return {"rate": "as fast as it goes"}.get(key, "—")
    if key == "workload":
        return "no load" if value == _UNLOADED else str(value)
    if key == "size":
        return size(value)
    if key == "rate":
        return f"{value:,.0f}/s"
    if key in ("nodes", "senders", "threads", "streams", "messages"):
        return plural(int(value), key.removesuffix("s"))
    if key == "update_share":
        return f"{share(value)} updates"
    if key == "paced":
        return f"{value} paced"
    return str(value)


def cell(column: str, value: Any) -> str:
    """A value in a table of the page; the CSV has it whole."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}"
    if isinstance(value, int) and column != "seed":
        return f"{value:,}"
    if isinstance(value, list):
        return "; ".join(str(one) for one in value)
    return str(value)
