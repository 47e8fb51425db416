"""What is held back, what is on the way and what was decided last: the story of the moment (`tradewind why now`). Pure.

Told by the words and rules of why.py. What was said again and again is one line, with how often and since when; of
several nodes, with the least and the most of each duration.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from tradewind.api import Story, StoryLine
from tradewind.autoscaler.actions import Hold
from tradewind.autoscaler.fleet import NodeRecord
from tradewind.events import DecisionRecorded
from tradewind.render import count_text, counts_text, names_text, offer_text
from tradewind.units import format_duration, format_usd, parse_duration_s
from tradewind.why import (
    LAST,
    Scene,
    bought_as,
    coming_of,
    cut_notes,
    hold_line,
    launch_lines,
)
from tradewind.why_lines import facts, in_order, newest, with_others

# Words of their own: the end of a name (a zone us-east-1d, a job sweep-10m) is none.
_DURATION = re.compile(r"(?<![\w./-])(?:\d+(?:\.\d+)?(?:s|m|h|d))+\b")


def now_story(scene: Scene, fleet_name: str, last: int = LAST["now"]) -> Story:
    holds = list({(hold.subject, hold.reason): hold for hold in scene.plan.holds}.values()) if scene.plan else []
    coming = coming_of(scene.fleet)
    groups = (
        [_waiting_line(hold, scene) for hold in holds],
        _coming_lines(coming, scene.now_s),
        _decision_lines(scene),
    )
    kept = [newest(lines, last) for lines in groups]
    notes = () if scene.plan else ("The controller has not looked yet: what waits is told after its first tick.",)
    return Story(
        about="now",
        subject=fleet_name,
        title=f"Fleet {fleet_name} now: {count_text(len(holds), 'thing')} held back, {len(coming)} on the way",
        facts=_now_facts(scene),
        lines=tuple(line for lines, _ in kept for line in lines),
        notes=(*notes, *cut_notes(replace(scene, is_cut=False), sum(left_out for _, left_out in kept))),
    )


def _now_facts(scene: Scene) -> tuple[tuple[str, str], ...]:
    nodes = Counter(str(node.state) for node in scene.fleet.alive_nodes)
    jobs = Counter(str(job.state) for job in scene.fleet.open_jobs)
    return facts(
        ("asked for", names_text(scene.asked, "; ") or "nothing"),
        ("jobs", counts_text(jobs) or "none open"),
        ("nodes", counts_text(nodes) or "none"),
        (
            "cost",
            f"{format_usd(scene.costs.rate_uusd_per_h)}/h now, {format_usd(scene.costs.total_uusd)} so far{scene.note}",
        ),
    )


def _waiting_line(hold: Hold, scene: Scene) -> StoryLine:
    said = (e.at_s for e in reversed(scene.decisions) if (e.subject, e.reason) == (hold.subject, hold.reason))
    since_s = next(said, scene.plan.at_s if scene.plan else None)
    return replace(hold_line(hold.subject, hold.reason, hold.alternatives, since_s), group="Held back")


def _coming_lines(coming: Sequence[NodeRecord], now_s: float) -> list[StoryLine]:
    """Nodes of one market that were asked for together, for one reason, and stand alike, are one line."""
    groups: dict[Hashable, list[NodeRecord]] = {}
    for node in coming:
        key = (node.offer.market.key, node.state, node.reason, round(node.requested_at_s))
        groups.setdefault(key, []).append(node)
    return [_coming_line(alike, now_s) for alike in groups.values()]


def _coming_line(alike: Sequence[NodeRecord], now_s: float) -> StoryLine:
    first = alike[0]
    waited = format_duration(max(0.0, now_s - first.requested_at_s))
    names = names_text([node.launch_id for node in alike])
    each = " each" if len(alike) > 1 else ""
    what = f"{names}, {offer_text(first.offer)}{each}, {first.state}, asked for {waited} ago"
    return StoryLine(group="On the way", at_s=first.requested_at_s, what=what, reason=first.reason)


def _decision_lines(scene: Scene) -> list[StoryLine]:
    groups: dict[Hashable, list[DecisionRecorded]] = {}
    held = {_held_as(hold.subject, hold.reason) for hold in scene.plan.holds} if scene.plan else set()
    for event in scene.decisions:
        if event.action == "hold" and _held_as(event.subject, event.reason) in held:
            continue  # it still is, and is told as such
        if event.action != "launch" or (event.subject not in scene.superseded and event.subject in scene.fleet.nodes):
            groups.setdefault(_said_as(event, scene), []).append(event)
    lines = [replace(_line_of(alike, scene), group="Decided last") for alike in groups.values()]
    return in_order(lines)


def _held_as(subject: str, reason: str) -> Hashable:
    return subject, _DURATION.sub("", reason)


def _said_as(event: DecisionRecorded, scene: Scene) -> Hashable:
    """Decisions that say the same, whatever the durations in their words, are one line. Of what is held back or
    granted, the subject says what it is; of anything else, which node. A launch after refusals has more to tell than
    one without."""
    words = _DURATION.sub("", event.reason)
    if event.action == "launch":
        return event.action, words, bought_as(event, scene.fleet.nodes[event.subject])[:2], bool(event.refused)
    return event.action, words, event.subject if event.action in ("hold", "grant") else ""


def _spanned(reasons: Iterable[str]) -> str:
    """Words that are alike but for their durations, as one: "idle for 1m02s to 6h05m"."""
    known = list(dict.fromkeys(reasons))
    rows = [_DURATION.findall(reason) for reason in known]
    if len({len(row) for row in rows}) > 1:
        return known[-1]
    spans = iter([_span(column) for column in zip(*rows, strict=True)])
    return _DURATION.sub(lambda _: next(spans), known[-1])


def _span(durations: Iterable[str]) -> str:
    ranked = sorted(set(durations), key=parse_duration_s)
    return ranked[0] if len(ranked) == 1 else f"{ranked[0]} to {ranked[-1]}"


def _line_of(alike: Sequence[DecisionRecorded], scene: Scene) -> StoryLine:
    """The newest of them, and which others there were. Of several, durations are told from the least to the most."""
    newest_one = replace(alike[-1], reason=_spanned({event.subject: event.reason for event in alike}.values()))
    names = names_text(dict.fromkeys(event.subject for event in alike))
    if newest_one.action == "launch":
        line = next(iter(launch_lines([newest_one], scene)))
        line = replace(line, what=line.what.replace(newest_one.subject, names, 1))
    elif newest_one.action == "hold":
        line = hold_line(newest_one.subject, newest_one.reason, newest_one.alternatives, newest_one.at_s)
    else:
        what = f"{newest_one.action} {names}"
        line = StoryLine(at_s=newest_one.at_s, what=what, reason=newest_one.reason)
        line = with_others(line, newest_one.alternatives)
    return replace(line, count=len(alike), since_s=alike[0].at_s)
