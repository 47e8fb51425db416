"""Changed copies of frozen records. Pure."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

Record = TypeVar("Record")


class Copier(Generic[Record]):
    """`dataclasses.replace` for one class at two thirds of its cost: a controller folds its whole log when it starts.

    A record is frozen for everyone who holds it; here a new one is filled by its slots before anyone does.
    """

    def __init__(self, record_type: type[Record]) -> None:
        self._type: Any = record_type
        names = [each.name for each in fields(cast("Any", record_type))]
        self._values = attrgetter(*names)
        self._setters = tuple(getattr(record_type, name).__set__ for name in names)
        self._index = {name: i for i, name in enumerate(names)}

    def __call__(self, record: Record, **changes: object) -> Record:
        values = list(self._values(record))
        for name, value in changes.items():
            values[self._index[name]] = value
        fresh: Record = object.__new__(self._type)
        for fill, value in zip(self._setters, values, strict=True):
            fill(fresh, value)
        return fresh
