"""Membership: joins, leaves and crashes become views that all members see alike.

The most senior member coordinates. It gathers what happens within a moment and makes one view of
it. When it goes or dies, the next one does. Nothing here is acknowledged: heartbeats name the view
that their sender knows, so whoever has missed one is noticed, and asks or is told. It needs neither
the reliable multicast nor its stability.

Two coordinators of one group, after a partition or because both began alone, find each other by
discovery; the one with the smaller view, or the younger, dissolves it, and its members join the
other with new lives.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from antiphon.groups.checks import check_flag, check_number
from antiphon.groups.layers.choosing import found_of, founded_at, majority, rank
from antiphon.groups.layers.reports import Reports
from antiphon.groups.messages import (
    Control,
    Dissolve,
    Find,
    Found,
    GetView,
    Gone,
    Heartbeat,
    Join,
    Leave,
    PutOut,
    Suspects,
    ViewMessage,
)
from antiphon.groups.protocol import (
    Busy,
    Contact,
    Contacts,
    Exclude,
    Installed,
    JoinGroup,
    Layer,
    LeaveGroup,
    Left,
    Received,
    Reset,
    Search,
    Send,
    Signal,
    Suspect,
    Trust,
    Verify,
)
from antiphon.groups.view import DEPARTED_KEPT, Member, Record, View

__all__ = ["Membership"]

_GATHER = 0.03
_RETRY = 0.2
_FIND = 0.1
_ALONE = 0.15
_REMEMBERED = 60.0
_EXCLUDED = 2.0  # seconds for which a wish to put somebody out counts, unless it is repeated
_OCCUPIED = 1.0  # seconds at one message: an application that would see no view
_STUBBORN = 3  # reports of one who cannot reach a member that others reach


@dataclass(slots=True)
class _Heard:
    """What another one said of itself, and when."""

    found: Found
    when: float


class Membership(Layer):
    """``discovery``: how long contacts that do not answer are waited for before a member forms a
    group of its own; ``join``: how long a coordinator has to take a member in; ``leave``: how long
    a member waits to be let go; ``merge``: seconds between two looks for other coordinators;
    ``primary``: after a partition only the side with the majority goes on."""

    name = "membership"
    needs = ("discovery", "failure-detection")

    def __init__(
        self,
        *,
        discovery: float = 1.0,
        join: float = 3.0,
        leave: float = 2.0,
        merge: float = 1.0,
        primary: bool = False,
    ) -> None:
        for setting, value in (
            ("discovery", discovery),
            ("join", join),
            ("leave", leave),
            ("merge", merge),
        ):
            check_number(setting, value, 0.01, 3600, layer=self.name, unit="seconds")
        check_flag("primary", primary, layer=self.name)
        self.discovery = discovery
        self.join = join
        self.leave = leave
        self.merge = merge
        self.primary = primary
        self._state = "new"  # joining, member, leaving, out
        self._me: Member | None = None
        self._record: Record | None = None
        self._seen = 0  # the highest id of a view
        self._contacts: dict[int, str] = {}
        self._former: dict[
            int, tuple[str, float]
        ] = {}  # where members were, and until when it counts
        self._heard: dict[int, _Heard] = {}
        self._since = 0.0
        self._next_join = 0.0
        self._target: tuple[int, float] | None = None  # a coordinator's life, and since when
        self._refused: dict[int, float] = {}
        # Of a coordinator:
        self._joining: dict[int, Join] = {}
        self._leaving: set[int] = set()
        self._crashed: set[int] = set()
        self._due: float | None = None
        self._told: dict[int, float] = {}
        self._confirmed: set[int] = set()  # those that have the view, by their heartbeats
        self._reports = Reports()
        self._suspects: set[int] = set()
        self._excluded: dict[int, float] = {}  # until when
        self._asked_out = 0.0
        self._behind: dict[int, int] = {}  # who has gone or was put out, and their last view
        self._busy = 0.0
        self._next_leave = 0.0
        self._counts = {"views": 0, "evicted": 0, "dissolved": 0}

    # --- who we are -------------------------------------------------------------------------

    @property
    def me(self) -> Member:
        """This member, in its present life."""
        assert self._me is not None
        return self._me

    def _acting(self) -> Member | None:
        """Who is to make the next view, as far as this member knows.

        It is in it, and its first: with its id a view has a name that no other one has. So whoever
        leaves makes none.
        """
        if self._record is None:
            return None
        out = self._suspects | self._crashed | self._leaving | self._excluded.keys()
        if self._state == "leaving":
            out.add(self.me.life)
        return next((one for one in self._record.members if one.life not in out), None)

    @property
    def _coordinates(self) -> bool:
        acting = self._acting()
        return acting is not None and acting.life == self.me.life

    def _begin(self, me: Member, now: float, at: Member | None = None) -> None:
        """Another life: joins whoever is found; ``at`` is where to try first."""
        self._me, self._record = me, None
        self._state = "joining"
        self._since = now
        self._next_join = now
        self._target = None
        self._heard.clear()
        self._forget_plans()
        self._suspects.clear()
        self._excluded.clear()
        self._behind.clear()
        self._reports.clear()
        if at is not None:
            self._former[at.id] = (at.address, now + _REMEMBERED)
        self.pass_down(Reset(me), now)
        self.pass_up(Reset(me), now)
        self.pass_down(Search(_FIND, me, also=self._also(now)), now)

    def _also(self, now: float) -> tuple[Contact, ...]:
        self._former = {node: one for node, one in self._former.items() if now < one[1]}
        return tuple(Contact(node, one[0]) for node, one in self._former.items())

    def _address(self, node: int) -> str | None:
        known = self._contacts.get(node)
        return known or (self._former[node][0] if node in self._former else None)

    def _forget_plans(self) -> None:
        self._joining.clear()
        self._leaving.clear()
        self._crashed.clear()
        self._due = None

    def _again(self, now: float, at: Member | None) -> None:
        """We are not in the group any more: a new life."""
        if self._state == "leaving":
            self._out(now)
            return
        life = self.rng.getrandbits(63) | 1
        self._begin(msgspec.structs.replace(self.me, life=life), now, at)

    def _out(self, now: float) -> None:
        self._state = "out"
        self._record = None
        self.pass_down(Search(None), now)
        self.pass_up(Left(), now)

    # --- events -----------------------------------------------------------------------------

    def down(self, event: Signal, now: float) -> None:
        """Joining and leaving."""
        if isinstance(event, JoinGroup):
            self._begin(event.me, now)
        elif isinstance(event, LeaveGroup):
            self._leave(now)
        elif isinstance(event, Exclude):
            self._exclude((event.life,), now)
        else:
            self.pass_down(event, now)

    def up(self, event: Signal, now: float) -> None:
        """What is heard of others."""
        if isinstance(event, Received):
            if self._state not in ("new", "out"):
                self._received(event.node, event.message, now)
        elif isinstance(event, Contacts):
            self._contacts = {contact.node: contact.address for contact in event.contacts}
        elif isinstance(event, Suspect):
            self._suspect(event.life, now)
        elif isinstance(event, Exclude):
            self._exclude((event.life,), now)
        elif isinstance(event, Busy):
            self._busy = event.seconds
        elif isinstance(event, Trust):
            self._suspects.discard(event.life)
            self._crashed.discard(event.life)
        else:
            self.pass_up(event, now)

    def _received(self, node: int, message: Control, now: float) -> None:
        if isinstance(message, Find):
            self._asked(node, message, now)
        elif isinstance(message, Found):
            self._found(message, now)
        elif isinstance(message, Join):
            self._wants_in(message, now)
        elif isinstance(message, Leave):
            if self._record is not None:
                self._leaving |= {message.life, *message.also} & self._record.by_life().keys()
                self._leaving.discard(self.me.life)
                self._plan(now)
        elif isinstance(message, ViewMessage):
            self._told_view(message.record, now)
        elif isinstance(message, GetView):
            self._tell_view(message.life, now)
        elif isinstance(message, Heartbeat):
            self._beat(node, message, now)
        elif isinstance(message, Suspects):
            self._reported(message, now)
        elif isinstance(message, PutOut):
            # Of two that accuse each other the first one is believed.
            record, accuser = self._record, message.life
            if record is not None and record.has(accuser) and accuser not in self._excluded:
                self._exclude(message.members, now)
        elif isinstance(message, Gone):
            self._told_view(message.record, now)
        elif isinstance(message, Dissolve):
            record = self._record
            if record is not None and record.coordinator.life == message.life:
                self._again(now, message.to)

    def tick(self, now: float) -> None:
        """Tries again what has not come about, and makes the view that is due."""
        self._excluded = {life: until for life, until in self._excluded.items() if now < until}
        if self._state == "joining":
            self._seek(now)
        elif self._state == "leaving" and now >= self._next_leave:
            self._leave_again(now)
        if self._due is not None and now >= self._due:
            self._due = None
            if self._state == "member" and self._coordinates:
                self._make_view(now)

    # --- joining ----------------------------------------------------------------------------

    def _asked(self, node: int, message: Find, now: float) -> None:
        record = self._record
        answer = Found(self.me)
        if record is not None:
            # Not to one that is silent, or is being put out: it would take nobody in.
            answer = found_of(self.me, record, self._acting() or record.coordinator)
        if message.joining is not None:
            self.send(message.joining, answer, now)
            if self._state == "joining" and message.joining.life != self.me.life:
                self._heard[message.joining.id] = _Heard(Found(message.joining), now)
        elif (address := self._address(node)) is not None:
            self.pass_down(Send(node, address, answer), now)

    def _found(self, found: Found, now: float) -> None:
        if found.member.life == self.me.life:
            return
        self._heard[found.member.id] = _Heard(found, now)
        if self._state == "joining":
            self._seek(now)
        elif self._state == "member" and self._coordinates:
            self._compare(found, now)

    def _seek(self, now: float) -> None:
        """Joins the best view that is known; makes one when nobody has any."""
        if self._busy > _OCCUPIED:
            return  # whatever it was put out for would happen again
        fresh = [one.found for one in self._heard.values() if now - one.when < self.discovery]
        refused = {life for life, until in self._refused.items() if now < until}
        views = [
            one
            for one in fresh
            if one.coordinator is not None and one.coordinator.life not in refused
        ]
        if views:
            best = max(views, key=rank)
            assert best.coordinator is not None
            self._ask_in(best.coordinator, now)
            return
        waited = now - self._since
        others = [one.member for one in fresh if one.coordinator is None]
        silent = self._contacts.keys() - {one.id for one in others} - {self.me.id}
        patience = self.discovery if silent or others else _ALONE
        if silent and waited < patience:
            return
        if not silent and waited < _ALONE:
            return
        first = min([self.me, *others], key=lambda one: (one.id, one.life))
        if first.life == self.me.life or waited > 4 * self.discovery:
            self._install(Record(self._seen + 1, founded_at(self.date, self.rng), (self.me,)), now)

    def _ask_in(self, coordinator: Member, now: float) -> None:
        if self._target is None or self._target[0] != coordinator.life:
            self._target = (coordinator.life, now)
            self._next_join = now
        elif now - self._target[1] > self.join:
            self._refused[coordinator.life] = now + self.join
            self._target = None
            self._heard.pop(coordinator.id, None)
            return
        if now >= self._next_join:
            self._next_join = now + _RETRY
            self.send(coordinator, Join(self.me, self._seen), now)

    def _wants_in(self, message: Join, now: float) -> None:
        record = self._record
        if record is None:
            return
        if record.has(message.member.life):
            self.send(message.member, ViewMessage(record), now)
            return
        acting = self._acting()
        if acting is None or self._state == "leaving":
            return
        if acting.life != self.me.life:
            # Told where to ask; its own search finds that out as well, a little later.
            self.send(message.member, found_of(self.me, record, acting), now)
            return
        self._joining[message.member.life] = message
        for member in record.members:
            if member.id == message.member.id:  # its last life is over
                self._crashed.add(member.life)
        self._plan(now)

    # --- views ------------------------------------------------------------------------------

    def _plan(self, now: float) -> None:
        """What happens together makes one view."""
        if self._due is None and self._coordinates:
            self._due = now + _GATHER

    def _make_view(self, now: float) -> None:
        old = self._record
        assert old is not None
        lives = {member.life for member in old.members}
        leaving = self._leaving & lives
        # One who asks to leave is not dead. Others in whose place this member acts are.
        out = self._crashed | self._suspects | self._excluded.keys()
        crashed = (out & lives) - leaving - {self.me.life}
        stay = [one for one in old.members if one.life not in leaving | crashed]
        nodes = {one.id for one in stay}
        joins = [
            join
            for join in self._joining.values()
            if join.member.life not in lives and join.member.id not in nodes
        ]
        came = {join.member.id: join.member for join in joins}  # the last life of each node
        members = (*stay, *came.values())
        self._forget_plans()
        if len(members) == len(old.members) and not came:
            return
        above = max([self._seen, old.id, *(join.above for join in joins)])
        departed = (*old.departed, *sorted(leaving))[-DEPARTED_KEPT:]
        voters = tuple(life for life in self._voters(old) if life not in departed)
        primary = not self.primary or (old.primary and majority(voters, members))
        gone = [one for one in old.members if one.life in leaving]
        record = Record(above + 1, old.founded, members, primary, departed, voters)
        for member in (*members, *gone):
            if member.life != self.me.life:
                self.send(member, ViewMessage(record), now)
        for member in old.members:
            if member.life in crashed and member.life in self._excluded:
                self.send(member, Gone(record), now)  # it lives, and should know
        self._install(record, now)

    def _voters(self, record: Record) -> tuple[int, ...]:
        """Of whom a majority has to stay: not of a view that perhaps nobody else has seen."""
        lives = tuple(member.life for member in record.members)
        if self._confirmed | {self.me.life} >= set(lives):
            return lives
        return record.voters or lives

    def _told_view(self, record: Record, now: float) -> None:
        if not record.members or self._state not in ("joining", "member", "leaving"):
            return
        mine, old = record.has(self.me.life), self._record
        if old is None:
            if mine and record.id > self._seen:
                self._install(record, now)
            return
        acting = self._acting()
        # Whoever should make our next view, since those before it have gone, has one of its own.
        parted = not mine and acting == record.coordinator not in (old.coordinator, self.me)
        if not parted and (record.founded != old.founded or record.id <= old.id):
            return
        if old.primary and not record.primary and not mine:
            return  # a minority puts nobody out of the majority; it finds us, and comes
        if mine:
            self._install(record, now)
        elif self._state == "leaving":
            self._out(now)
        else:
            self._counts["evicted"] += 1
            self._seen = max(self._seen, record.id)
            self._again(now, record.coordinator)

    def _install(self, record: Record, now: float) -> None:
        old, self._record = self._record, record
        self._seen = record.id
        if self._state == "joining":
            self._state = "member"
        before = old.by_life() if old is not None else {}
        after = record.by_life()
        gone = [member for life, member in before.items() if life not in after]
        if old is not None and gone:
            self._behind |= {member.life: old.id for member in gone}
            self._behind = dict(list(self._behind.items())[-DEPARTED_KEPT:])
        view = View(
            id=record.id,
            members=record.members,
            joined=tuple(one for one in record.members if one.life not in before)
            if old is not None
            else (self.me,),
            left=tuple(one for one in gone if one.life in record.departed),
            crashed=tuple(one for one in gone if one.life not in record.departed),
            primary=record.primary,
        )
        self._suspects &= after.keys()
        self._excluded = {life: one for life, one in self._excluded.items() if life in after}
        self._reports.keep(after.keys())
        self._told.clear()
        self._confirmed.clear()
        if record.coordinator.life != self.me.life:
            self._forget_plans()
        self._counts["views"] += 1
        installed = Installed(record, view, self.me)
        for member in (*gone, *record.members):
            self._former[member.id] = (member.address, now + _REMEMBERED)
        self.pass_down(installed, now)
        nodes = frozenset(member.id for member in record.members)
        search = self.merge if record.coordinator.life == self.me.life else None
        self.pass_down(Search(search, None, nodes, self._also(now)), now)
        self.pass_up(installed, now)
        if self._suspects:
            for life in tuple(self._suspects):
                self._suspect(life, now)

    def _tell_view(self, life: int, now: float) -> None:
        record = self._record
        member = record.by_life().get(life) if record is not None else None
        if record is not None and member is not None:
            self.send(member, ViewMessage(record), now)

    def _beat(self, node: int, beat: Heartbeat, now: float) -> None:
        """Heartbeats name the view of their sender: whoever is behind is found so."""
        record = self._record
        if record is None or beat.founded != record.founded:
            return
        member = record.by_life().get(beat.life)
        if member is None:
            if beat.view > record.id:
                address = self._address(node)
                if address is not None:
                    self.pass_down(Send(node, address, GetView(self.me.life)), now)
            elif now >= self._told.get(beat.life, 0.0):
                # It was put out, and did not hear of it.
                self._told[beat.life] = now + _RETRY
                address = self._address(node)
                if address is not None:
                    self.pass_down(Send(node, address, Gone(record)), now)
        elif beat.view > record.id:
            self.send(member, GetView(self.me.life), now)
        elif beat.view == record.id and beat.coordinator == record.coordinator.life:
            self._confirmed.add(beat.life)
        elif beat.view < record.id and now >= self._told.get(beat.life, 0.0):
            self._told[beat.life] = now + _RETRY
            self.send(member, ViewMessage(record), now)

    # --- crashes ----------------------------------------------------------------------------

    def _suspect(self, life: int, now: float) -> None:
        record = self._record
        if record is None or not record.has(life):
            return
        self._suspects.add(life)
        acting = self._acting()
        if acting is None:
            return
        if acting.life == self.me.life:
            self._crashed |= self._suspects & record.by_life().keys()
            self._plan(now)
        else:
            self.send(acting, Suspects(self.me.life, tuple(sorted(self._suspects))), now)

    def _reported(self, message: Suspects, now: float) -> None:
        """Another member does not reach some: this one asks them itself."""
        record = self._record
        if record is None or not record.has(message.life) or message.life in self._suspects:
            return
        for life in message.suspects:
            if life == self.me.life or not record.has(life):
                continue
            count = self._reports.add(message.life, life, now)
            if count >= _STUBBORN and record.coordinator.life == self.me.life:
                # It answers us, but not that one: the group cannot stay whole with both.
                self._crashed.add(life)
                self._plan(now)
            else:
                self.pass_down(Verify(life), now)

    def _exclude(self, lives: tuple[int, ...], now: float) -> None:
        """They are there, but the group cannot go on with them."""
        record = self._record
        if record is None:
            return
        for life in lives:
            if life != self.me.life and record.has(life):
                self._excluded[life] = now + _EXCLUDED
        acting = self._acting()
        if not self._excluded or acting is None:
            return
        if acting.life == self.me.life:
            self._crashed |= self._excluded.keys()
            self._plan(now)
        elif now >= self._asked_out:
            self._asked_out = now + _RETRY
            self.send(acting, PutOut(self.me.life, tuple(sorted(self._excluded))), now)

    # --- leaving ----------------------------------------------------------------------------

    def _leave(self, now: float) -> None:
        if self._state != "member":
            self._out(now)
            return
        self._state = "leaving"
        self._since = now
        self._leave_again(now)

    def _leave_again(self, now: float) -> None:
        self._next_leave = now + _RETRY
        acting = self._acting()
        if acting is None or now - self._since > self.leave:
            self._out(now)
        else:
            self.send(acting, Leave(self.me.life, tuple(sorted(self._leaving))), now)

    # --- two coordinators -------------------------------------------------------------------

    def _compare(self, found: Found, now: float) -> None:
        record = self._record
        assert record is not None
        other = found.coordinator
        if other == self.me and not record.has(found.member.life):
            self.send(found.member, Gone(record), now)  # it waits for a view of ours in vain
        if other is None or record.has(other.life):
            return
        behind = found.founded == record.founded and found.view <= self._behind.get(other.life, 0)
        if behind and (record.primary or not found.primary):
            # That is the view before this one: it was put out, and has not noticed.
            self.send(other, Gone(record), now)
            return
        if rank(found) <= rank(found_of(self.me, record, self.me)):
            return  # they will find us, and come
        self._counts["dissolved"] += 1
        for member in record.members:
            if member.life != self.me.life:
                self.send(member, Dissolve(self.me.life, other), now)
        self._again(now, other)

    def statistics(self) -> dict[str, float]:
        """``views`` so far, how often this member was ``evicted``, and ``dissolved`` its view."""
        return dict(self._counts)
