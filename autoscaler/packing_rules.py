"""What a placement group means for packing: its pieces, its region, its slice. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tradewind.autoscaler.ray_snapshot import Gang, Strategy
from tradewind.autoscaler.shape import LabelRule, Selector, Shape, add_up
from tradewind.model import LABEL_REGION, LABEL_ZONE

ANYWHERE = ""  # in the place of a region


def gang_source(gang: Gang) -> str:
    return f"gang {gang.gang_id[:8]}"


def job_of(source: str) -> str:
    """The job id in the name of who asks: "job NAME", "job NAME, whose node is taken away"."""
    return source.removeprefix("job ").split(",")[0] if source.startswith("job ") else ""


def together(bundles: Iterable[Shape]) -> Shape:
    """One shape that asks for everything at once. Selectors of several bundles must all hold: every combination."""
    bundles = list(bundles)
    combined: list[Selector] = [()]
    for alternatives in sorted({bundle.selectors for bundle in bundles if bundle.selectors}):
        combined = [(*before, *selector) for before in combined for selector in alternatives]
    resources = add_up(dict(bundle.resources) for bundle in bundles)
    selectors = [] if combined == [()] else combined
    return Shape.of(resources, selectors=selectors)


def pieces_of(gang: Gang) -> tuple[Shape, ...]:
    """What must lie on one node each: the bundles, or all of them as one piece. On a slice, what only some hosts can
    have (its first one is the slice's head) goes first, or another bundle lies there and a second slice is bought."""
    if gang.strategy is Strategy.STRICT_PACK:
        return (together(gang.bundles),)
    return tuple(sorted(gang.bundles, key=_ties, reverse=True)) if wants_slice(gang) else gang.bundles


def _ties(bundle: Shape) -> tuple[int, int]:
    return len(bundle.resources), sum(len(selector) for selector in bundle.selectors)


def names_a_place(bundles: Iterable[Shape]) -> bool:
    """Who asks for regions or zones himself may also spread over several."""
    rules = (rule for bundle in bundles for selector in bundle.selectors for rule in selector)
    return any(rule.key in (LABEL_REGION, LABEL_ZONE) for rule in rules)


def inside(shape: Shape, region: str, regions: Sequence[str]) -> Shape:
    """The same, and in no other region. A node that does not say where it is (the head) is not elsewhere."""
    others = tuple(other for other in regions if other != region)
    if region == ANYWHERE or not others:
        return shape
    rule = LabelRule(LABEL_REGION, others, negated=True)
    return Shape.of(dict(shape.resources), selectors=[(*selector, rule) for selector in shape.selectors or ((),)])


def has_accelerators(shape: Shape) -> bool:
    return any(key in ("GPU", "TPU") for key, _ in shape.resources)


def packs(strategy: Strategy) -> bool:
    """Whether a gang would rather lie on few nodes: who asks to be spread does not."""
    return strategy in (Strategy.PACK, Strategy.STRICT_PACK)


def wants_slice(gang: Gang) -> bool:
    """Several hosts of accelerators that are wired together."""
    several = len(gang.bundles) > 1 and gang.strategy is not Strategy.STRICT_PACK
    return several and all(any(key == "TPU" for key, _ in bundle.resources) for bundle in gang.bundles)
