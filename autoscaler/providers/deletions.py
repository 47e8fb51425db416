"""What providers share about the removal of debris."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from tradewind.errors import NotFound, ProviderError

_log = logging.getLogger(__name__)


def delete_each(deletions: Iterable[tuple[str, Callable[[], object]]]) -> None:
    """By name. One that cannot be deleted (it may be going already) does not keep the others: the first error is raised
    when all were tried."""
    failed: list[ProviderError] = []
    for name, delete in deletions:
        try:
            delete()
        except NotFound:
            _log.info("%s is gone already", name)
        except ProviderError as error:
            failed.append(error)
    if failed:
        raise failed[0]
