"""The error tree: drawn as it is, and every message says what to do next."""

from __future__ import annotations

import inspect
import re

import pytest

from tradewind import errors
from tradewind.errors import ConfigError, LogLocked, Problem, ProviderError, Scope, Stockout, TradewindError

CLASSES = [
    each for _, each in inspect.getmembers(errors, inspect.isclass)
    if issubclass(each, TradewindError) and each.__module__ == errors.__name__
]  # fmt: skip


def test_the_drawn_tree_is_the_real_one() -> None:
    drawn = set(re.findall(r"\b[A-Z][a-z]+[A-Za-z]*\b", re.sub(r"  +[a-z].*", "", errors.__doc__ or "")))
    assert {each.__name__ for each in CLASSES} <= drawn


def test_a_message_ends_with_what_to_do() -> None:
    assert str(LogLocked("taken")) == "taken (use that controller, or stop it with `tradewind down`)"
    assert str(LogLocked("taken", "wait")) == "taken (wait)"
    assert str(TradewindError("so it is")) == "so it is"


def test_a_config_error_tells_every_problem() -> None:
    error = ConfigError([Problem("a.yaml:3", "limits.x", "is wrong"), Problem("a.yaml", "", "is empty")])
    assert error.message == "a.yaml:3: limits.x: is wrong\na.yaml: is empty"
    assert len(error.problems) == 2
    assert "tradewind schema" in error.hint


PROVIDER_ERRORS = [each for each in CLASSES if issubclass(each, ProviderError)]


@pytest.mark.parametrize("kind", PROVIDER_ERRORS, ids=lambda each: each.__name__)
def test_what_a_refusal_blocks_can_be_said_by_the_cloud(kind: type[ProviderError]) -> None:
    usual, said = kind("no"), kind("no", cloud="aws", code="X", scope=Scope.CLOUD, block_s=5.0)
    assert (said.scope, said.block_s, said.cloud, said.code) == (Scope.CLOUD, 5.0, "aws", "X")
    assert (kind("no").scope, kind("no").block_s) == (usual.scope, usual.block_s)
    assert (usual.block_s > 0) == (usual.scope is not Scope.NOTHING)
    assert not (usual.retryable and usual.block_s)


def test_a_stockout_rules_out_the_zone_for_a_while() -> None:
    assert (Stockout("none left").scope, Stockout("none left").retryable) == (Scope.ZONE, False)
