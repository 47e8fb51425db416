"""What providers share about placement groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tradewind.errors import ProviderError, Scope


@contextmanager
def about_the_group() -> Iterator[None]:
    """What goes wrong inside speaks of groups alone: the same machine may be had outside of one."""
    try:
        yield
    except ProviderError as error:
        if not error.retryable:
            error.scope = Scope.GROUP
            error.block_s = error.block_s or 600.0
        raise
