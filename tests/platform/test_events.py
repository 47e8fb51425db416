"""Events go to JSON and back without a loss, and older ones are brought to the present."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.events import (
    EVENT_TYPES,
    KINDS,
    SCHEMA_VERSION,
    AnyEvent,
    LaunchRequested,
    NodeGone,
    NodeJoined,
    Schema,
    decode,
    encode,
    upgrade,
)
from tradewind.model import Capacity, EndReason, Market, Offer


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a type; mappings are plain dicts, as everywhere in our code."""
    if is_dataclass(hint) and isinstance(hint, type):
        return any_of(hint)
    if get_origin(hint) is Mapping:
        key, value = get_args(hint)
        return st.dictionaries(values(key), values(value), max_size=3)
    if get_origin(hint) is tuple and get_args(hint)[1:] == (...,):
        return st.lists(values(get_args(hint)[0]), max_size=3).map(tuple)
    return st.from_type(hint)


def any_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{each.name: values(hints[each.name]) for each in fields(kind) if each.name != "kind"})


@pytest.mark.parametrize("event_type", EVENT_TYPES, ids=lambda each: each.__name__)
def test_every_kind_survives_json(event_type: type[AnyEvent]) -> None:
    @settings(max_examples=25, deadline=None)
    @given(any_of(event_type))
    def survives(event: AnyEvent) -> None:
        found = decode(encode(event))
        assert type(found) is event_type
        assert repr(found) == repr(event)  # repr, since a NaN does not equal itself
        json.loads(encode(event), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))

    survives()


def test_kinds_are_unique_and_named_after_their_class() -> None:
    assert len(KINDS) == len(EVENT_TYPES)
    for event_type in EVENT_TYPES:
        kind = event_type.__dataclass_fields__["kind"].default
        assert str(kind).replace("_", "") == event_type.__name__.lower()


def test_every_event_has_a_time_and_is_frozen() -> None:
    assert all(fields(event_type)[0].name == "at_s" for event_type in EVENT_TYPES)
    event = NodeJoined(at_s=1.0, launch_id="a", ray_node_id="f")
    with pytest.raises(FrozenInstanceError):
        event.at_s = 2.0  # type: ignore[misc]


def test_nested_values_come_back_as_what_they_were() -> None:
    market = Market("aws", "us-east-1", "use1-az4", "g6.xlarge", Capacity.SPOT)
    offer = Offer(market, vcpus=4, memory_gib=16, accelerator="L4", accelerator_count=1, price_uusd_per_h=None)
    found = decode(encode(LaunchRequested(at_s=1.0, launch_id="a", offer=offer, reason="r")))
    assert isinstance(found, LaunchRequested)
    assert found.offer == offer
    assert isinstance(found.offer.market.capacity, Capacity)
    assert found.offer.market.key == "aws/use1-az4/g6.xlarge/spot"


@pytest.mark.parametrize(
    "payload",
    ["", "[]", "{}", '{"kind": "moon_landed"}', '{"kind": "node_joined"}', '{"kind": "node_gone", "at_s": "soon"}'],
)
def test_what_is_no_event_raises_value_error(payload: str) -> None:
    with pytest.raises(ValueError, match="validation error"):
        decode(payload)


def test_a_payload_of_the_present_version_needs_no_upgrade() -> None:
    event = NodeGone(at_s=1.0, launch_id="a", end=EndReason.PREEMPTED)
    assert upgrade(json.loads(encode(event)), SCHEMA_VERSION) == event


def test_an_upgrade_may_rename_a_kind() -> None:
    schema = Schema(
        SCHEMA_VERSION + 2,
        {
            ("node_lost", SCHEMA_VERSION): lambda old: {**old, "kind": "node_gone", "reason": "lost"},
            ("node_gone", SCHEMA_VERSION + 1): lambda old: {**old, "end": old["reason"]},
        },
    )
    found = upgrade({"kind": "node_lost", "at_s": 1, "launch_id": "a"}, SCHEMA_VERSION, schema)
    assert found == NodeGone(at_s=1.0, launch_id="a", end=EndReason.LOST)
