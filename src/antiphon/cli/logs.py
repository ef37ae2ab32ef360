"""Logs of a command that runs for long: as text for people, or a JSON object per line."""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import Any

__all__ = ["FORMATS", "set_up_logs"]

FORMATS = ("text", "json")
_TEXT = "%(asctime)s %(levelname)s %(message)s"
# What every record has; anything else was given as a fact of its own.
_USUAL = set(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime"}


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        facts: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        facts.update({name: value for name, value in vars(record).items() if name not in _USUAL})
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts, default=str)


def set_up_logs(form: str, level: str) -> None:
    """To standard error, from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines() if form == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
