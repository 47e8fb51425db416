"""What providers share about placement groups."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tradewind.errors import AuthError, ProviderError, Scope

Group = TypeVar("Group")
_BLOCK_S = 600.0  # where the error does not say for how long
_log = logging.getLogger(__name__)


@contextmanager
def about_the_group() -> Iterator[None]:
    """What goes wrong inside speaks of groups alone: the same machine may be had outside of one."""
    try:
        yield
    except ProviderError as error:
        if not error.retryable:
            error.scope, error.block_s = Scope.GROUP, error.block_s or _BLOCK_S
        raise


def if_allowed(ask: Callable[[], list[Group]]) -> list[Group]:
    """Groups that may not be listed were not made either: both rights came with groups, and a policy that is older than
    they are must not keep disks and interfaces from being found."""
    try:
        return ask()
    except AuthError as error:
        _log.warning("placement groups are not looked for: %s", error)
        return []
