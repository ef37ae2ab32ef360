"""Failure detection: who is not heard is asked, and suspected if it does not answer.

Any message of a member counts as a sign of life, and so does data, but not what its node says in
another life. Members that have nothing to
say send a heartbeat. Silence for too long, or a lost connection, only raises the question; a
member that answers it is left alone, whatever its connection looked like.

Heartbeats also tell for how long their sender's application has been at one message. One that
hangs lives, and is called stuck; whether it is put out for that is a setting.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from antiphon.errors import ConfigError
from antiphon.groups.checks import check_flag, check_number
from antiphon.groups.messages import AreYouThere, Heartbeat, IAm, sender_life
from antiphon.groups.protocol import (
    Busy,
    Disconnected,
    Exclude,
    Heard,
    Installed,
    Layer,
    Received,
    Reset,
    Signal,
    Stuck,
    Suspect,
    Trust,
    Verify,
)
from antiphon.groups.view import Member, Record

__all__ = ["FailureDetection"]

_SAMPLES = 100
_THRESHOLD = 8.0
_LATE = 0.5  # of the time-out: so late, and it is we who were away


@dataclass(slots=True)
class _Watched:
    """What is known of one member's signs of life."""

    member: Member
    last: float
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    asked: float | None = None
    suspected: bool = False
    stuck: bool = False


class FailureDetection(Layer):
    """``fixed``: silence of ``timeout`` seconds; ``phi``: silence that is improbable, going by the
    member's own rhythm, at ``threshold`` (8: one error in 10**8), and at most ``timeout``.
    ``stuck``: seconds at one message after which a member is called stuck, 0: never;
    ``evict_stuck``: whether it is put out for it."""

    name = "failure-detection"

    def __init__(
        self,
        *,
        heartbeat: float = 0.5,
        timeout: float = 3.0,
        verify: float = 0.5,
        detector: str = "fixed",
        threshold: float | None = None,
        stuck: float = 10.0,
        evict_stuck: bool = False,
    ) -> None:
        check = partial(check_number, layer=self.name, unit="seconds")
        check("heartbeat", heartbeat, 0.01, 3600)
        check("timeout", timeout, 0.01, 3600)
        if timeout <= heartbeat:
            raise ConfigError(
                f"timeout of layer {self.name!r} is {timeout!r}; it must be longer than heartbeat "
                f"({heartbeat!r})",
                setting="timeout",
                value=timeout,
            )
        check("verify", verify, 0.01, 3600)
        check("stuck", stuck, 0.01, 3600, zero="for never")
        check_flag("evict_stuck", evict_stuck, layer=self.name)
        if detector not in ("fixed", "phi"):
            raise ConfigError(
                f"detector of layer {self.name!r} is {detector!r}; it must be 'fixed' or 'phi'",
                setting="detector",
                value=detector,
            )
        if threshold is not None:
            check_number("threshold", threshold, 0.1, 300, layer=self.name)
            if detector == "fixed":
                raise ConfigError(
                    f"threshold of layer {self.name!r} is for detector='phi'; 'fixed' goes by "
                    "timeout alone",
                    setting="threshold",
                    value=threshold,
                )
        if evict_stuck and not stuck:
            raise ConfigError(
                "evict_stuck puts out who is stuck, and with a time of 0 nobody is; give the "
                "seconds after which a member is",
                setting="evict_stuck",
                value=evict_stuck,
            )
        self.heartbeat = heartbeat
        self.timeout = timeout
        self.verify = verify
        self.detector = detector
        self.threshold = _THRESHOLD if threshold is None else threshold
        self.stuck = stuck
        self.evict_stuck = evict_stuck
        self._watched: dict[int, _Watched] = {}
        self._nodes: dict[int, int] = {}
        self._me: Member | None = None
        self._record: Record | None = None
        self._next_beat = 0.0
        self._last_tick: float | None = None
        self._busy = 0.0
        self._counts = {"heartbeats": 0, "questions": 0, "suspected": 0, "cleared": 0}

    # --- what comes -------------------------------------------------------------------------

    def up(self, event: Signal, now: float) -> None:
        """Everything that comes from a member is a sign of its life."""
        if isinstance(event, Received):
            life = self._nodes.get(event.node)
            message = event.message
            if isinstance(message, AreYouThere):
                # The old life of a node that has begun another does not answer for it.
                if self._me is not None and message.life == self._me.life:
                    self.send_to_node(event, IAm(message.life), now)
                return
            said = sender_life(message)
            if life is not None and said not in (None, life):
                # Of another life of its node: the one that we know is over, or has not begun.
                self._ask(self._watched[life], now)
            elif life is not None:
                self._heard(life, now, now)
                if isinstance(message, Heartbeat):
                    self._notice(self._watched[life], message.busy, now)
            if isinstance(message, IAm):
                return
        elif isinstance(event, Heard):
            self._heard(event.life, event.when, now)
            return
        elif isinstance(event, Busy):
            self._busy = event.seconds
        elif isinstance(event, Disconnected):
            life = self._nodes.get(event.node)
            if life is not None:
                self._ask(self._watched[life], now)
        self.pass_up(event, now)

    def send_to_node(self, event: Received, message: IAm, now: float) -> None:
        """Back to where it came from."""
        life = self._nodes.get(event.node)
        if life is not None:
            self.send(self._watched[life].member, message, now)

    def down(self, event: Signal, now: float) -> None:
        """Views say who is watched."""
        if isinstance(event, Installed):
            self._me, self._record = event.me, event.record
            others = [one for one in event.record.members if one.life != event.me.life]
            self._watched = {
                one.life: self._watched.get(one.life) or _Watched(one, now) for one in others
            }
            self._nodes = {one.id: one.life for one in others}
            self._beat(now)
        elif isinstance(event, Reset):
            self._me, self._record = event.me, None
            self._watched, self._nodes = {}, {}
        elif isinstance(event, Verify):
            one = self._watched.get(event.life)
            if one is not None:
                self._ask(one, now)
            return
        self.pass_down(event, now)

    def _heard(self, life: int, when: float, now: float) -> None:
        one = self._watched.get(life)
        if one is None or when <= one.last:
            return
        one.gaps.append(when - one.last)
        one.last = when
        if one.asked is not None and when < one.asked:
            return  # it came before the question was put
        one.asked = None
        if one.suspected:
            one.suspected = False
            self._counts["cleared"] += 1
            self.pass_up(Trust(life), now)

    def _notice(self, one: _Watched, busy: float, now: float) -> None:
        stuck = self.stuck > 0 and busy >= self.stuck
        if stuck != one.stuck:
            one.stuck = stuck
            self.pass_up(Stuck(one.member, busy if stuck else 0.0), now)
        if stuck and self.evict_stuck:
            self.pass_up(Exclude(one.member.life), now)

    # --- what goes --------------------------------------------------------------------------

    def _beat(self, now: float) -> None:
        if self._me is None or self._record is None:
            return
        self._next_beat = now + self.heartbeat
        beat = Heartbeat(
            self._me.life,
            self._record.id,
            self._record.founded,
            self._record.coordinator.life,
            self._busy,
        )
        for one in self._watched.values():
            self._counts["heartbeats"] += 1
            self.send(one.member, beat, now)

    def _ask(self, one: _Watched, now: float) -> None:
        if one.asked is None:
            one.asked = now
            self._counts["questions"] += 1
            self.send(one.member, AreYouThere(one.member.life), now)

    def tick(self, now: float) -> None:
        """Beats, questions, and suspicions of those who do not answer."""
        away = now - self._last_tick if self._last_tick is not None else 0.0
        self._last_tick = now
        if away > self.timeout * _LATE:
            # Nobody was silent: nobody listened. All begin anew.
            for one in self._watched.values():
                one.last = max(one.last, now - self.heartbeat)
                one.asked = None
        if now >= self._next_beat:
            self._beat(now)
        for one in list(self._watched.values()):
            if one.asked is None and self._silent(one, now):
                self._ask(one, now)
            elif one.asked is not None and now - one.asked >= self.verify:
                if not one.suspected:
                    self._counts["suspected"] += 1
                one.suspected = True
                one.asked = None
                self._ask(one, now)  # it may still answer
                self.pass_up(Suspect(one.member.life), now)

    def _silent(self, one: _Watched, now: float) -> bool:
        quiet = now - one.last
        if self.detector == "fixed" or len(one.gaps) < 10:
            return quiet > self.timeout
        return quiet > self.timeout or self.phi(one.gaps, quiet) > self.threshold

    def phi(self, gaps: deque[float], quiet: float) -> float:
        """How improbable it is that one with such gaps between its signs is silent so long."""
        mean = sum(gaps) / len(gaps)
        variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
        # A rhythm can look steadier than any network is; and beats come at least so often.
        deviation = max(math.sqrt(variance), self.heartbeat / 4)
        mean = max(mean, self.heartbeat)
        tail = 0.5 * math.erfc((quiet - mean) / (deviation * math.sqrt(2)))
        return -math.log10(tail) if tail > 0 else math.inf

    def settings(self) -> dict[str, object]:
        """Without ``threshold`` where it means nothing."""
        known = super().settings()
        if self.detector == "fixed":
            del known["threshold"]
        return known

    def statistics(self) -> dict[str, float]:
        """``heartbeats``, ``questions``, ``suspected`` and of those ``cleared`` again; how many
        are ``stuck`` now."""
        stuck = sum(one.stuck for one in self._watched.values())
        return {**self._counts, "stuck": stuck}
