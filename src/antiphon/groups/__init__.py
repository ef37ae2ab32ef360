"""Groups: processes that agree who is there, and send to all of each other in order.

- `group`: `Group`, over a node; `port`, `finding`, `reading` are its sides
- `protocol`: layers and stacks, events in and actions out; `layers`: one to a file
- `simulator`: the same stacks without sockets and clocks, for tests
- `view`: `Member` and `View`; `messages`: what members say to each other

Receives nodes from `antiphon.node` and finders from `antiphon.topics`; hands messages and views to
programs. What happens once per message is in ``native/window`` and ``native/groups``.
"""

from __future__ import annotations

from antiphon.groups.config import GroupConfig
from antiphon.groups.group import Group
from antiphon.groups.statistics import GroupStatistics
from antiphon.groups.view import Member, View

__all__ = ["Group", "GroupConfig", "GroupStatistics", "Member", "View"]
