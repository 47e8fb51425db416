"""Label selectors in their plain form, as a job file has them: read as Ray reads them."""

from __future__ import annotations

import pytest

from tradewind.autoscaler.shape import LabelRule, Shape
from tradewind.autoscaler.testing import World, make_offer
from tradewind.model import LABEL_ACCELERATOR

T4 = make_offer("aws/us-east-1a/g4dn", usd_per_h=0.2, gpus=1, accelerator="T4")
L4 = make_offer("aws/us-east-1a/g6", usd_per_h=0.3, gpus=1, accelerator="L4")
A100 = make_offer("aws/us-east-1a/p4d", usd_per_h=1.0, gpus=1, accelerator="A100")


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("L4", {"L4"}),
        ("!T4", {"L4", "A100", None}),
        ("in(A100, L4)", {"L4", "A100"}),
        ("in(L4)", {"L4"}),
        ("!in(A100,L4)", {"T4", None}),
        ("insane", set()),
    ],
)
def test_operators(text: str, allowed: set[str | None]) -> None:
    shape = Shape.of({"GPU": 1}, {LABEL_ACCELERATOR: text})
    sold: list[str | None] = ["T4", "L4", "A100", None]
    assert {kind for kind in sold if shape.allows({LABEL_ACCELERATOR: kind} if kind else {})} == allowed


def test_the_same_rule_is_the_same_shape() -> None:
    assert LabelRule.of("a", "in(x,y)") == LabelRule.of("a", "in(y, x)") == LabelRule("a", ("x", "y"))
    assert str(Shape.of({"GPU": 1}, {"a": "!x"})) == "{GPU: 1} where a!=x"


def test_what_any_but_one_kind_may_serve_is_bought() -> None:
    """It was taken to the letter, no machine had such a label, and nothing was bought."""
    world = World((T4, L4, A100))
    world.ray.submit({"GPU": 1}, 1, {LABEL_ACCELERATOR: "!T4"})
    world.loop.tick()
    assert [spec.offer for spec in world.cloud.launch_calls] == [L4]
