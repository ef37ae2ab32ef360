"""The summary, in plain sentences that are made from the data.

A sentence says no more than the data do: with one repeat there is no interval and it says so; two
whose intervals overlap are not ranked; where nothing was measured nothing is claimed.
"""

from __future__ import annotations

from antiphon.pipeline.report.data import Row
from antiphon.pipeline.report.divide import is_link, labels
from antiphon.pipeline.report.figures_delay import is_sample
from antiphon.pipeline.report.figures_load import kept_text
from antiphon.pipeline.report.page import strong
from antiphon.pipeline.report.story import (
    COLLAPSES,
    HOLDS,
    LEFT_OUT,
    Contender,
    Machine,
    Story,
    same_setting,
)
from antiphon.pipeline.report.units import key_text, plural, rate, share, size, speed, took
from antiphon.pipeline.schemas import LATER

__all__ = ["answer", "findings", "headline", "listed", "machine_line", "method", "warnings"]

ENDINGS = {
    "out_of_memory": "ran out of memory",
    "disconnected": "lost its connection",
    "blocked": "stood still",
    "unbounded_growth": "used ever more memory",
    "error": "failed",
    "absent": "not there",
    "not_applicable": "does not apply",
    "interrupted": "was interrupted",
    "complete": "completed",
}
BUSY = 0.1
HARDLY_SECONDS = 1.0
SHORT_SECONDS = 10.0
_MANY = 6


def listed(names: list[str]) -> str:
    """ "a, b and c"; of many, the first and how many more."""
    if len(names) > _MANY:
        names = [*names[:_MANY], f"{len(names) - _MANY} more"]
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def headline(story: Story) -> str:
    if story.ranked:
        return "Which messaging system holds under load?"
    if story.speeds:
        return "Which messaging system is the fastest here?"
    if story.delays:
        return "How late do messages come?"
    return "What the lab measured"


def answer(story: Story) -> str:
    """One paragraph: who holds, who collapses, by how much."""
    if not story.runs:
        return "There are no runs in these tables, so there is nothing to say."
    if not story.outcomes["complete"]:
        count = len(story.runs)
        none = (
            "The only run did not complete" if count == 1 else f"None of {count:,} runs completed"
        )
        return f"{none}, so nothing can be compared. How they ended is told below."
    if story.ranked:
        return " ".join([*_under_load(story, story.ranked), *_apart(story)])
    if story.speeds:
        return _fastest(story) + " Nothing was measured beside competing work."
    if story.delays:
        return _delay(story)
    return "Runs completed, but none of a kind that this summary ranks: the figures follow."


def method(story: Story) -> str:
    """How the words of the answer are meant; nothing where it does not use them."""
    said = []
    if len(story.compared) > 1 and story.setting:
        others = [one for one in story.compared if one != story.setting[0]]
        said.append(f"This is told of {story.setting[0]}; the figures have {listed(others)} too.")
    tested = [one for one in story.contenders if one.tried]
    if len(tested) < 2 or not story.outcomes["complete"]:
        return " ".join(said)
    kinds = plural(len(story.workloads), "kind of load", "kinds of load")
    taken = [
        f" {workload} takes {share(part)} of all cores for itself."
        for workload, part in story.loads.items()
    ]
    if story.paced:
        said.append(
            f"All were to send at {rate(tested[0].row['rate'])}, and none was asked for more: a "
            "part below 100 % is a rate that was not kept."
        )
    said.append(
        f"Each is held against its own unloaded throughput, under {kinds} "
        f"({listed(story.workloads)}): to hold is to keep {share(HOLDS)} or more beside each, to "
        "collapse is to keep less than half beside any. Who completes no run beside a load keeps "
        f"nothing there.{''.join(taken[:4])}"
    )
    return " ".join(said)


def _under_load(story: Story, tested: list[Contender]) -> list[str]:
    if len(tested) == 1:
        only = tested[0]
        loads = listed(sorted(only.tried))
        if sum(bool(one.tried) for one in story.contenders) > 1:
            return [f"Only {strong(only.name)} was measured beside {loads}. {_keeps(only)}"]
        return [f"Only {strong(only.name)} was measured under load. {_keeps(only)} Tried: {loads}."]
    best, last = tested[0], tested[-1]
    said = []
    worst = _part(best)
    if worst >= HOLDS:
        said.append(f"{strong(best.name)} holds best of {len(tested)}: {_keeps(best, short=True)}.")
    elif worst >= COLLAPSES:
        said.append(
            f"No protocol holds fully. {strong(best.name)} keeps the most of {len(tested)}: "
            f"{_keeps(best, short=True)}."
        )
    else:
        said.append(
            f"All {len(tested)} protocols collapse. {strong(best.name)} keeps the most: "
            f"{_keeps(best, short=True)}."
        )
    level = [one.name for one in tested[1:] if _overlap(best, one)]
    if level:
        said.append(f"It cannot be told apart from {listed(level)}: the intervals overlap.")
    fallen = [one for one in tested if _part(one) < COLLAPSES]
    if fallen and worst >= COLLAPSES:
        others = [one.name for one in fallen if one is not last]
        more = f" So {'do' if len(others) > 1 else 'does'} {listed(others)}." if others else ""
        said.append(f"{strong(last.name)} collapses: {_keeps(last, short=True)}.{more}")
    elif worst >= COLLAPSES:
        said.append(
            f"None collapses; the weakest is {strong(last.name)}: {_keeps(last, short=True)}."
        )
    else:
        said.append(f"The weakest is {strong(last.name)}: {_keeps(last, short=True)}.")
    if all(row["kept_low"] is None for one in tested for row in one.kept.values()):
        said.append("Each was measured once, so there are no intervals: differences may be chance.")
    return said


def _apart(story: Story) -> list[str]:
    """Who was not tried beside the same loads: what it would keep beside the others is not known,
    and to rank it would reward whoever does not run."""
    said = []
    loads = story.ranked[0].tried
    for one in story.contenders:
        if not one.tried or one in story.ranked:
            continue
        words = []
        if missing := sorted(loads - one.tried):
            words.append(f"was not measured beside {listed(missing)}")
        if more := sorted(one.tried - loads):
            words.append(f"alone was measured beside {listed(more)}")
        said.append(f"{one.name} {' and '.join(words)}")
    return [f"Not ranked: {listed(said)}."] if said else []


def _keeps(one: Contender, short: bool = False) -> str:
    worst = one.worst
    assert worst is not None
    if ending := one.failed.get(worst["workload"]):
        beside = f"nothing beside {worst['workload']}, where it {ENDINGS.get(ending, ending)}"
    else:
        beside = f"{kept_text(worst)} of its throughput beside {worst['workload']}"
        beside += ", its worst" if len(one.tried) > 1 else ""
    return f"it keeps {beside}" if short else f"It keeps {beside}."


def _part(one: Contender) -> float:
    assert one.worst is not None
    return float(one.worst["kept"])


def _overlap(one: Contender, other: Contender) -> bool:
    first, second = one.worst, other.worst
    if first is None or second is None or first["kept_low"] is None or second["kept_high"] is None:
        return False
    return bool(second["kept_high"] >= first["kept_low"])


def _fastest(story: Story) -> str:
    ranked = sorted(
        (one for one in story.contenders if one.unloaded), key=lambda one: -(one.unloaded or 0)
    )
    if not ranked:
        return ""
    best, last = ranked[0], ranked[-1]
    what = _messages(best.row)
    if len(ranked) == 1:
        return f"{strong(best.name)} moves {speed(best.unloaded)} {what} without load."
    times = (best.unloaded or 0) / (last.unloaded or 1)
    return (
        f"Without load {strong(best.name)} is the fastest of {len(ranked)}: "
        f"{speed(best.unloaded)} {what}, {times:.1f} times as much as {last.name} "
        f"({speed(last.unloaded)})."
    )


def _messages(row: Row) -> str:
    of = f"in messages of {size(row['size'])}" if row["size"] else ""
    return f"{of} over {row['link']}" if row["link"] else of


def _delay(story: Story) -> str:
    """In one setting, that which most protocols share: who is early, and who late."""
    rows = same_setting([row for row in story.delays if row["p99_us"] is not None])
    if not rows:
        return ""
    label = labels(rows)
    best = min(rows, key=lambda row: row["p99_us"])
    last = max(rows, key=lambda row: row["p99_us"])
    where = " ".join(word for word in (rate(best["rate"]), _messages(best), _among(best)) if word)
    said = (
        f"At {where}, 99 of 100 messages of {strong(label(best))} come within "
        f"{took(best['p99_us'])} (half of them within {took(best['p50_us'])})"
    )
    if label(last) == label(best):
        return said + "."
    count = len({label(row) for row in rows})
    late = f"{label(last)} with {took(last['p99_us'])}"
    return f"{said}: the earliest of {count}. The latest is {late}."


def _among(row: Row) -> str:
    """What else there was, where it is not the usual."""
    words = [f"from {row['senders']:,} senders"] if (row["senders"] or 1) > 1 else []
    if row["workload"] not in (None, "none"):
        words.append(f"beside {row['workload']}")
    return " ".join(words)


def findings(story: Story) -> list[str]:
    """What else there is to know, a sentence each."""
    said = []
    tested = bool(story.ranked)
    if story.outcomes["complete"] and tested and story.speeds and not story.paced:
        said.append(_fastest(story))
        said += _loaded_speed(story)
    if story.outcomes["complete"] and story.delays and (tested or story.speeds):
        said.append(_delay(story))
    said += _unfinished(story)
    return [one for one in said if one]


def _loaded_speed(story: Story) -> list[str]:
    """Keeping much of little is still little: who moves the most bytes under load."""
    said = []
    for workload in story.workloads:
        ranked = [one for one in story.contenders if workload in one.loaded]
        if len(ranked) < 2:
            continue
        best = max(ranked, key=lambda one: one.loaded[workload])
        said.append(
            f"Beside {workload} {strong(best.name)} moves the most: {speed(best.loaded[workload])}."
        )
    return said[:4]


def _unfinished(story: Story) -> list[str]:
    failed: dict[tuple[str, str], int] = {}
    for row in story.ran():
        if row["outcome"] != "complete":
            at = (row["protocol"] or "?", row["outcome"] or "unknown")
            failed[at] = failed.get(at, 0) + 1
    if not failed:
        ran = len(story.ran())
        return [f"All {plural(ran, 'run')} that took place completed."] if ran else []
    words = [
        f"{name} {ENDINGS.get(outcome, outcome)} ({plural(count, 'run')})"
        for (name, outcome), count in sorted(failed.items())
    ]
    return [f"Failing to finish is a result too: {listed(words)}."]


def machine_line(story: Story) -> str:
    """On which machine; with several, each with its campaigns."""
    if not story.machines:
        return "The tables do not say on which machine this was measured."
    said = []
    for machine, campaigns in list(story.machines.items())[:4]:
        which = f" ({listed(campaigns)})" if len(story.machines) > 1 else ""
        said.append(f"{_machine(machine)}{which}")
    if len(story.machines) > 4:
        said.append(f"and {len(story.machines) - 4} more")
    return f"Measured on {'; '.join(said)}."


def _machine(machine: Machine) -> str:
    words = [machine.cpu]
    if machine.cores:
        words.append(plural(machine.cores, "core"))
    if machine.memory_gb:
        words.append(f"{machine.memory_gb:.0f} GB")
    if machine.kernel:
        words.append(machine.kernel)
    if machine.python:
        words.append(f"Python {machine.python}")
    if machine.antiphon:
        words.append(f"Antiphon {machine.antiphon}")
    return f"{machine.host}: " + ", ".join(word for word in words if word)


def warnings(story: Story) -> list[str]:
    """What a reader must know before believing any of it."""
    said = []
    hardware = {(one.host, one.cpu, one.cores) for one in story.machines}
    if len(hardware) > 1:
        said.append(
            f"These campaigns come from {len(hardware)} machines. Where they stand side by side, "
            "machines are compared as well as protocols."
        )
    busy = _busy_before(story)
    if busy:
        which = f" ({listed(list(busy))})" if len(story.campaigns) > 1 else ""
        said.append(
            f"The machine was busy before anything began: other programs used "
            f"{share(max(busy.values()))} of all its cores{which}. All figures are of what these "
            "left, and loads come on top of them: measure again on a quiet machine."
        )
    timed = [row for row in story.runs if row["window_seconds"]]
    windows = [row["window_seconds"] for row in timed if row["messages"] is None]
    if windows and min(windows) < SHORT_SECONDS:
        said.append(
            f"Windows are as short as {min(windows):.0f} s, as in a quick plan: a first "
            "impression, not a result."
        )
    numbers = [row["window_seconds"] for row in timed if row["messages"] is not None]
    if numbers and min(numbers) < HARDLY_SECONDS:
        said.append(
            f"Some runs of a given number of messages were over within {took(min(numbers) * 1e6)}: "
            "that is how fast they began, and not what they would keep up."
        )
    once = [
        row for row in story.tables.rows("throughput") if row["repeats"] == 1 and not is_link(row)
    ]
    if once:
        said.append(f"{plural(len(once), 'measurement')} had one repeat only, and so no intervals.")
    lost = [row for row in story.ran() if row["outcome"] != "complete"]
    if lost:
        said.append(
            f"{len(lost)} of {plural(len(story.ran()), 'run')} did not complete. They count in the "
            "table of endings, and in no other figure than the time lines."
        )
    later = story.later()
    gone = [row["protocol"] or "?" for row in story.runs if row["outcome"] in LEFT_OUT]
    gone = [protocol for protocol in gone if protocol not in later]
    if gone:
        said.append(f"{plural(len(gone), 'run')} did not take place ({listed(sorted(set(gone)))}).")
    if later:
        said.append(f"Planned, and {LATER} of Antiphon: {listed(later)}.")
    return said + _about_numbers(story)


def _busy_before(story: Story) -> dict[str, float]:
    """Campaigns beside which more went on than is to be passed over: which part of all cores."""
    found: dict[str, float] = {}
    for row in story.ran():
        if (row["other_load"] or 0.0) > BUSY:
            found[row["campaign"]] = row["other_load"]
    return dict(sorted(found.items()))


def _about_numbers(story: Story) -> list[str]:
    said = []
    sampled = [row["sampled_one_in"] for row in story.tables.rows("latency") if is_sample(row)]
    if sampled:
        said.append(
            f"Delays of {plural(len(sampled), 'series', 'series')} are a sample, down to 1 message "
            f"in {max(sampled):,.0f}: their tails are those of the sample."
        )
    wrong = sum(row["clock_errors"] or 0 for row in story.runs)
    if wrong:
        said.append(
            f"{plural(wrong, 'message')} seemed to arrive before being sent, since clocks differ; "
            "they are left out of the delays."
        )
    losers: dict[str, int] = {}
    for row in story.runs:
        if row["outcome"] == "complete" and (row["lost_messages"] or 0) > 0:
            losers[row["protocol"] or "?"] = (
                losers.get(row["protocol"] or "?", 0) + row["lost_messages"]
            )
    if losers:
        most = sorted(losers.items(), key=lambda one: -one[1])
        words = [f"{name} {count:,}" for name, count in most]
        said.append(
            f"Messages were lost on the way by {listed(words)}: their throughput is what came."
        )
    said += [
        f"The competing load {key_text('workload', workload)} reached {share(measured)} of the "
        f"processor where {share(wanted)} was asked for."
        for workload, wanted, measured in _missed_loads(story)
    ]
    said += [
        f"The competing load {key_text('workload', workload)} replaced {measured:,.0f} objects a "
        f"second in a process where {wanted:,.0f} were asked for."
        for workload, wanted, measured in _missed_garbage(story)
    ]
    paced, free = (
        sum(row.get("latency_skipped") or 0 for row in story.ran() if (row["rate"] is None) == free)
        for free in (False, True)
    )
    if paced:
        said.append(
            f"{plural(paced, 'message')} that were due were never sent, since their senders were "
            "more than a second behind: no delay of theirs is in any figure."
        )
    if free:
        said.append(
            f"{plural(free, 'delay')} of runs without a rate were not taken, since their senders "
            "were held up for more than a second: the longest are not in any figure."
        )
    said += [
        f"The table {table} could not be read and is left out ({reason})."
        for table, reason in story.tables.damaged.items()
    ]
    said += [story.tables.left_out(table) for table in story.tables.cut]
    aside = story.tables.set_aside()
    if aside:
        said.append(
            f"{plural(len(aside), 'file or folder', 'files or folders')} could not be used and "
            "were set aside; the list is at the end."
        )
    return said


def _missed_garbage(story: Story) -> list[tuple[str, float, float]]:
    """Loads on collectors that did less than nine tenths of what they were to do."""
    found: dict[str, tuple[float, float]] = {}
    for row in story.ran():
        wanted, measured = row.get("garbage_per_second"), row.get("garbage_per_second_measured")
        if wanted and measured is not None and measured < 0.9 * wanted:
            worst = found.get(row["workload"])
            if worst is None or measured / wanted < worst[1] / worst[0]:
                found[row["workload"]] = (wanted, measured)
    return [(name, *pair) for name, pair in sorted(found.items())]


def _missed_loads(story: Story) -> list[tuple[str, float, float]]:
    """Loads that were more than a tenth of the machine off."""
    found: dict[str, tuple[float, float]] = {}
    for row in story.ran():
        wanted, measured = row["cpu_share"], row["cpu_share_measured"]
        if wanted and measured is not None and abs(wanted - measured) > 0.1:
            worst = found.get(row["workload"])
            if worst is None or abs(wanted - measured) > abs(worst[0] - worst[1]):
                found[row["workload"]] = (wanted, measured)
    return [(name, *pair) for name, pair in sorted(found.items())]
