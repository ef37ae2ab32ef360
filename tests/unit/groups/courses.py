"""Random courses of a simulated group: joins, leaves, crashes, partitions, and a bad network."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from antiphon.groups.layers import Discovery, FailureDetection, Membership, Tcp
from antiphon.groups.protocol import Layer
from antiphon.groups.simulator import Faults, Person, Simulator


def plain() -> list[Layer]:
    return [Tcp(), Discovery(), FailureDetection(), Membership()]


class Course:
    """One of them, from its seed. Afterwards the network is well, and all should agree."""

    def __init__(
        self,
        seed: int,
        make: Callable[[], Iterable[Layer]] = plain,
        *,
        cuts: bool = True,
        loss: bool = True,
    ) -> None:
        self.seed = seed
        self.choice = random.Random(f"course {seed}")
        faults = Faults(
            loss=self.choice.choice([0.0, 0.05, 0.25]) if loss else 0.0,
            duplication=self.choice.choice([0.0, 0.1]),
            delay=(0.0005, self.choice.choice([0.005, 0.05, 0.2])),
        )
        self.sim = Simulator(seed, make, faults)
        self.everyone: list[Person] = []
        self.steps: list[str] = []
        self.cuts = cuts
        self._next = 1

    def join(self) -> None:
        self.everyone.append(self.sim.join(self._next))
        self._next += 1

    def stable(self) -> list[Person]:
        """Those that have not begun to leave."""
        return [one for one in self.sim.people.values() if one.node not in self._leaving()]

    def _leaving(self) -> set[int]:
        return {
            one.node
            for one in self.sim.people.values()
            if getattr(one.stack.find("membership"), "_state", "") == "leaving"
        }

    def step(self) -> None:
        sim, choice = self.sim, self.choice
        act = choice.choice(["join", "join", "leave", "crash", "cut", "heal", "several", "wait"])
        people = [one.node for one in self.stable()]
        self.steps.append(f"{sim.now:.2f} {act}")
        if act == "join" and len(people) < 8:
            self.join()
        elif act == "leave" and people:
            sim.leave(choice.choice(people))
        elif act == "crash" and people:
            sim.crash(choice.choice(people), noticed=choice.random() < 0.7)
        elif act == "cut" and self.cuts and len(people) > 1:
            sides: list[list[int]] = [[], []]
            for node in sim.people:
                sides[choice.random() < 0.5].append(node)
            sim.partition(sides)
        elif act == "heal":
            sim.heal()
        elif act == "several":
            for node in choice.sample(people, min(len(people), 3)):
                how = choice.random()
                if how < 0.3:
                    sim.leave(node)
                elif how < 0.6:
                    sim.crash(node, noticed=choice.random() < 0.5)
                elif len(people) < 8:
                    self.join()
        sim.run(sim.now + choice.choice([0.0, 0.01, 0.1, 1.0, 4.0]))

    def run(self) -> Course:
        for _ in range(self.choice.randint(2, 6)):
            self.join()
            self.sim.run(self.sim.now + self.choice.choice([0.0, 0.0, 0.05, 1.0]))
        for _ in range(self.choice.randint(3, 12)):
            self.step()
        self.sim.heal()
        self.sim.faults = Faults()
        if not self.stable():
            self.join()
        return self

    def told(self) -> str:
        """What happened, for whoever has to find out why."""
        lines = [f"seed {self.seed}, {self.sim.faults}", *self.steps]
        for one in self.everyone:
            state = getattr(one.stack.find("membership"), "_state", "")
            lines.append(f"member {one.node} ({state}): {'; '.join(map(str, one.views[-4:]))}")
        return "\n".join(lines)

    def check_agreement(self) -> None:
        assert self.sim.run_until(self.sim.agreed, 40), self.told()

    def check_views(self) -> None:
        """What holds of all views that anybody ever saw."""
        seen: dict[tuple[int, int], tuple[int, ...]] = {}
        for one in self.everyone:
            ids = [view.id for view in one.views]
            assert ids == sorted(set(ids)), self.told()
            before: set[int] = set()
            life = 0
            for view, own in zip(one.views, one.lives, strict=True):
                lives = tuple(member.life for member in view.members)
                assert own in lives, self.told()
                assert len(set(lives)) == len(lives), self.told()
                assert len({member.id for member in view.members}) == len(lives), self.told()
                # Two with one id and one coordinator are the same view.
                assert seen.setdefault((view.id, lives[0]), lives) == lives, self.told()
                if own == life:
                    gone = {member.life for member in (*view.left, *view.crashed)}
                    came = {member.life for member in view.joined}
                    assert came == set(lives) - before, self.told()
                    assert gone == before - set(lives), self.told()
                before, life = set(lives), own
