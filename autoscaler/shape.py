"""What one request asks of one node: resources and label selectors. Pure, hashable, so that equal requests group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tradewind.model import Labels, Resources

EPSILON = 1e-4  # Ray counts resources in steps of 0.0001
_SEVERAL = re.compile(r"in\((.*)\)")


@dataclass(frozen=True, slots=True, order=True)
class LabelRule:
    """`key in values`, or with `negated` the opposite. A missing label is in no set."""

    key: str
    values: tuple[str, ...]
    negated: bool = False

    @classmethod
    def of(cls, key: str, text: str) -> LabelRule:
        """As Ray reads it: `L4`, `!L4`, `in(L4, T4)`, `!in(L4, T4)`."""
        wanted = text.removeprefix("!")
        several = _SEVERAL.fullmatch(wanted.strip())
        values = [value.strip() for value in several[1].split(",")] if several else [wanted]
        return cls(key, tuple(sorted(values)), text.startswith("!"))

    def allows(self, labels: Labels) -> bool:
        return (labels.get(self.key) in self.values) is not self.negated

    def __str__(self) -> str:
        return f"{self.key}{'!=' if self.negated else '='}{'|'.join(self.values)}"


Selector = tuple[LabelRule, ...]  # all rules must hold


class _Hashed:
    """Room for a hash and words that are made once. No fields: they are neither compared nor sent anywhere."""

    __slots__ = ("_hash", "_words")
    _hash: int
    _words: str


@dataclass(frozen=True, slots=True, order=True)
class Shape(_Hashed):
    """One request. `selectors` are alternatives in order of preference, any one will do; none at all: any node."""

    resources: tuple[tuple[str, float], ...]
    selectors: tuple[Selector, ...] = ()

    def __hash__(self) -> int:
        """Shapes are keys everywhere in a decision, and selectors are slow to hash."""
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash((self.resources, self.selectors)))
            return self._hash

    @classmethod
    def of(cls, resources: Resources, labels: Labels | None = None, selectors: Iterable[Selector] = ()) -> Shape:
        """`labels` is the plain form of a selector: every label must be as it says."""
        wanted = tuple(sorted((key, float(amount)) for key, amount in resources.items() if amount > 0))
        alternatives = tuple(tuple(sorted(selector)) for selector in selectors)
        if labels:
            alternatives = (tuple(LabelRule.of(key, value) for key, value in sorted(labels.items())),)
        if any(not selector for selector in alternatives):
            alternatives = ()  # an empty selector allows everything, so the others say nothing
        return cls(wanted, alternatives)

    def allows(self, labels: Labels) -> bool:
        return not self.selectors or any(all(rule.allows(labels) for rule in selector) for selector in self.selectors)

    def copies_in(self, free: Resources) -> int:
        """How many of these fit side by side."""
        if not self.resources:
            return 1_000_000
        return min(int((free.get(key, 0.0) + EPSILON) / amount) for key, amount in self.resources)

    def missing_in(self, free: Resources) -> tuple[tuple[str, float], ...]:
        return tuple((key, amount) for key, amount in self.resources if free.get(key, 0.0) + EPSILON < amount)

    def __str__(self) -> str:
        """Asked for once for each place where some of them lie."""
        try:
            return self._words
        except AttributeError:
            object.__setattr__(self, "_words", self._in_words())
            return self._words

    def _in_words(self) -> str:
        text = "{" + ", ".join(f"{key}: {format_amount(key, amount)}" for key, amount in self.resources) + "}"
        if self.selectors:
            text += " where " + " or ".join(" and ".join(map(str, selector)) for selector in self.selectors)
        return text


def take(free: dict[str, float], shape: Shape, copies: int = 1) -> None:
    for key, amount in shape.resources:
        free[key] = free.get(key, 0.0) - amount * copies


def add_up(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for key, amount in part.items():
            total[key] = total.get(key, 0.0) + amount
    return total


def format_amount(key: str, amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB" if key in ("memory", "object_store_memory") else f"{amount:g}"
