"""Gangs onto rooms: all bundles or none, in one region, inside one slice where that is possible. Pure.

Where a gang could lie in several places, the one that ends earliest in the list of slots is taken. A slot that is
bought later stands later, so the choice is the same again at the next tick (see packing.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tradewind.autoscaler.packing_buyer import Asker, Buyer, NoBuyer
from tradewind.autoscaler.packing_kinds import Kind, Rows, apart, by_kind, put_rows, sharing
from tradewind.autoscaler.packing_rooms import Ints, Lay, Rooms, Slot
from tradewind.autoscaler.packing_rules import (
    ANYWHERE,
    gang_source,
    inside,
    names_a_place,
    packs,
    pieces_of,
    wants_slice,
)
from tradewind.autoscaler.ray_snapshot import Gang, Strategy
from tradewind.autoscaler.shape import Shape
from tradewind.model import LABEL_REGION

PlaceRows = Callable[[Ints, Rows, int], None]
Placed = list[tuple[int, Shape]]  # index of the slot, bundle

_DEAD_BEFORE_A_NEW_LOOK = 64


@dataclass(slots=True)
class _Open:
    """Slots that had room for a shape when it was last looked at, in order."""

    indices: list[int]
    known: int  # slots from here on are not in it yet
    dead: int = 0  # steps over slots that are full by now


@dataclass(slots=True)
class _Attempt:
    """Bundles that have found a slot so far, and where the search for the next one of a shape goes on: every slot
    before that is full or taken."""

    taken: set[int]
    placed: Placed = field(default_factory=list)
    position: dict[Shape, int] = field(default_factory=dict)


class GangPlaces:
    """Places gangs one after another on the same rooms."""

    def __init__(self, rooms: Rooms, buyer: Buyer) -> None:
        self._rooms, self._buyer = rooms, buyer
        self._open: dict[Shape, _Open] = {}
        self._pieces: dict[tuple[Strategy, tuple[Shape, ...]], tuple[Shape, ...]] = {}
        self._inside: dict[tuple[Shape, str], Shape] = {}
        self._failed: dict[tuple[Strategy, tuple[Shape, ...], str], int] = {}
        self._grown: dict[str, int] = {}  # region -> slots bought there
        self._slices: dict[str, list[int]] = {}  # by name of the slice
        self._note_slices(0)
        here = {slot.labels.get(LABEL_REGION, ANYWHERE) for slot in rooms.slots}
        self._regions = sorted((here | set(buyer.regions)) - {ANYWHERE})

    def place_all(self, gangs: Sequence[Gang]) -> Iterator[Lay | Gang]:
        """Where they lie; the gang itself where it found no place."""
        for kind, alike in by_kind(gangs):
            pieces = pieces_of(alike[0])
            if len(set(pieces)) == 1 and self._can_be_placed_at_once(pieces[0], alike):
                yield from self._place_alike(kind, pieces[0], len(pieces), alike)
                continue
            for gang in alike:
                placed = self.place(gang)
                if placed is None:
                    yield gang
                else:
                    yield from self._lays(gang, placed)

    def _lays(self, gang: Gang, placed: Placed) -> Iterator[Lay]:
        is_bound = len(self._regions) > 1 and not names_a_place(gang.bundles)
        for index, piece in placed:
            region = self._rooms.slots[index].labels.get(LABEL_REGION, ANYWHERE) if is_bound else ANYWHERE
            apart = int(gang.strategy is Strategy.STRICT_SPREAD)
            yield Lay(
                piece, (gang_source(gang),), np.array([index]), np.ones(1, np.int64), apart, self._in(piece, region)
            )

    def place(self, gang: Gang) -> Placed | None:
        key = (gang.strategy, gang.bundles)
        if key not in self._pieces:
            self._pieces[key] = pieces_of(gang)
        for shape in [shape for shape, known in self._open.items() if known.dead > _DEAD_BEFORE_A_NEW_LOOK]:
            del self._open[shape]
        pieces, regions = self._pieces[key], self._regions_of(gang)
        placed = self._on_what_is_there(gang, pieces, regions)
        return placed if placed is not None else self._on_new(gang, pieces, regions)

    # --- many alike -------------------------------------------------------------------------------------------

    def _can_be_placed_at_once(self, piece: Shape, alike: Sequence[Gang]) -> bool:
        """Not where each must be looked at by itself: it lies somewhere already, wants a slice, is counted for its
        owner, or could use a node that belongs to every region."""
        if self._buyer.counts_askers or wants_slice(alike[0]) or any(gang.placed_on for gang in alike):
            return False
        if len(self._regions_of(alike[0])) < 2:
            return True
        codes, values = self._rooms.label(LABEL_REGION)
        return None not in values or not self._rooms.copies(piece)[codes == values[None]].any()

    def _place_alike(self, kind: Kind, piece: Shape, size: int, alike: Sequence[Gang]) -> Iterator[Lay | Gang]:
        """On what is there, by the earliest ends, then on new."""
        place = apart if kind.strategy is Strategy.STRICT_SPREAD else sharing
        regions = self._regions_of(alike[0])
        slots = self._rows_there(piece, size, len(alike), place, regions)
        put_rows(self._rooms, piece, slots)
        left = len(alike) - len(slots)
        is_open = len(regions) > 1 and left > 0
        ordered = self._buyer.by_price(regions, (piece,) * size, place is apart, left) if is_open else regions
        for region in ordered:
            if len(slots) < len(alike):
                shape = self._in(piece, region)
                zone = self._buyer.near_zone((shape,) * size)
                asker = Asker(gang_source(alike[0]), size, True, place is apart, zone=zone, packs=packs(kind.strategy))
                new = self._buy_alike(shape, size, len(alike) - len(slots), place, asker)
                put_rows(self._rooms, piece, new)
                slots = np.concatenate([slots, new])
        yield from self._lays_alike(piece, size, alike, slots, place is apart, len(regions) > 1)
        yield from alike[len(slots) :]

    def _rows_there(self, piece: Shape, size: int, most: int, place: PlaceRows, regions: Sequence[str]) -> Ints:
        copies = self._rooms.copies(piece)
        if len(regions) < 2:
            return _rows(place, copies, size, most)
        codes, values = self._rooms.label(LABEL_REGION)
        some = np.flatnonzero(copies)
        total = np.bincount(codes[some], copies[some], len(values))
        rows = [np.zeros((0, size), np.int64)]
        for code in (values[region] for region in regions if region in values):
            if total[code] >= size:
                here = some[codes[some] == code]
                rows.append(here[_rows(place, copies[here], size, most)])
        slots = np.concatenate(rows)
        ends = slots.max(axis=1, initial=0)
        return slots[np.argsort(ends, kind="stable")[:most]]

    def _lays_alike(
        self, piece: Shape, size: int, alike: Sequence[Gang], slots: Ints, is_apart: bool, is_bound: bool
    ) -> Iterator[Lay]:
        """One for each region."""
        if not len(slots):
            return
        codes, values = self._rooms.label(LABEL_REGION)
        where = codes[slots[:, 0]] if is_bound else np.zeros(len(slots), np.int64)
        names = {code: region or ANYWHERE for region, code in values.items()}
        sources = [gang_source(gang) for gang in alike]
        for code in np.unique(where).tolist():
            chosen = np.flatnonzero(where == code)
            mine = [sources[index] for index in chosen.tolist() for _ in range(size)]
            bound = self._in(piece, names[code] if is_bound else ANYWHERE)
            flat = slots[chosen].ravel()
            yield Lay(piece, mine, flat, np.ones_like(flat), len(chosen) * is_apart, bound)

    def _buy_alike(self, shape: Shape, size: int, most: int, place: PlaceRows, asker: Asker) -> Ints:
        """Buys until `most` gangs have a place or nothing more is sold, and gives back what serves no whole gang."""
        before, copies, rows = len(self._rooms), self._rooms.copies(shape), Rows(size)
        slots = np.flatnonzero(copies)
        copies = copies[slots]
        while True:
            place(copies, rows, most)
            if rows.count == most:
                break
            bought = self._buyer.buy(shape, *_next_purchase(copies, size, most - rows.count, asker))
            if not bought:
                break
            first = self._append(bought)
            slots = np.concatenate([slots, np.arange(first, len(self._rooms))])
            copies = np.concatenate([copies, self._rooms.copies(shape, first)])
        found = slots[rows.slots]
        self._give_back(self._end_of_node(max(before, int(found.max(initial=-1)) + 1)))
        return found

    def _end_of_node(self, length: int) -> int:
        """A slice is bought whole: its other hosts are room, too, though nothing lies there yet."""
        slots = self._rooms.slots
        while 0 < length < len(slots) and slots[length].name == slots[length - 1].name:
            length += 1
        return length

    # --- where ------------------------------------------------------------------------------------------------

    def _regions_of(self, gang: Gang) -> Sequence[str]:
        if len(self._regions) < 2 or names_a_place(gang.bundles):
            return (ANYWHERE,)
        here = {self._rooms.slots[index].labels.get(LABEL_REGION, ANYWHERE) for index in self._held_by(gang)}
        return sorted(here - {ANYWHERE}) or self._regions

    def _on_what_is_there(self, gang: Gang, pieces: tuple[Shape, ...], regions: Sequence[str]) -> Placed | None:
        """Of all regions and slices where it fits, the one that ends earliest."""
        found = [self._try_region(gang, pieces, region) for region in regions]
        if self._slices and wants_slice(gang):
            found += [self._try(gang, pieces, ANYWHERE, within) for within in self._slices.values()]
        ended = [(max(index for index, _ in placed), number) for number, placed in enumerate(found) if placed]
        if not ended:
            return None
        best = found[min(ended)[1]]
        assert best is not None
        self._put(best, 1)
        return best

    def _try_region(self, gang: Gang, pieces: tuple[Shape, ...], region: str) -> Placed | None:
        """Rooms only shrink: what did not fit before fits only when more was bought there."""
        key, size = (gang.strategy, gang.bundles, region), self._grown.get(region, 0)
        if not gang.placed_on and self._failed.get(key) == size:
            return None
        placed = self._try(gang, pieces, region)
        if placed is None and not gang.placed_on:
            self._failed[key] = size
        return placed

    def _on_new(self, gang: Gang, pieces: tuple[Shape, ...], regions: Sequence[str]) -> Placed | None:
        hosts = self._buyer.buy_slice(gang) if wants_slice(gang) else ()
        if hosts:
            first = self._append(hosts)
            placed = self._try(gang, pieces, ANYWHERE, range(first, len(self._rooms)))
            if placed is not None:
                self._put(placed, 1)
                return placed
            self._give_back(first)
        is_apart = gang.strategy is Strategy.STRICT_SPREAD
        ordered = regions if len(regions) < 2 else self._buyer.by_price(regions, pieces, is_apart)
        for region in ordered:
            placed = self._try(gang, pieces, region, buying=True)
            if placed is not None:
                self._put(placed, 1)
                return placed
        return None

    # --- one attempt ------------------------------------------------------------------------------------------

    def _try(
        self,
        gang: Gang,
        pieces: tuple[Shape, ...],
        region: str,
        within: Sequence[int] | None = None,
        buying: bool = False,
    ) -> Placed | None:
        """Where the pieces would lie. Leaves the rooms as they were, but for slots that were bought with success."""
        before, attempt = len(self._rooms), _Attempt(set(self._held_by(gang)))
        fresh_only = gang.strategy is Strategy.STRICT_SPREAD
        zone = self._buyer.near_zone([self._in(piece, region) for piece in pieces]) if buying else ""
        if within is None:
            for piece in dict.fromkeys(pieces):
                self._candidates(self._in(piece, region))  # looked up while nothing is taken yet
        for number, piece in enumerate(pieces):
            shape = self._in(piece, region)
            index = self._find(shape, attempt, fresh_only, within)
            if index is None and buying:
                count = 1 if fresh_only else len(pieces) - number
                few = packs(gang.strategy)
                asker = Asker(gang_source(gang), len(pieces), True, fresh_only, zone=zone, packs=few)
                index = self._buy(shape, count, asker)
            if index is None:
                break
            self._rooms.put(index, shape, 1)
            attempt.placed.append((index, piece))
            attempt.taken.add(index)
        self._put(attempt.placed, -1)
        if len(attempt.placed) == len(pieces):
            return attempt.placed
        self._give_back(before)
        return None

    def _find(self, shape: Shape, attempt: _Attempt, fresh_only: bool, within: Sequence[int] | None) -> int | None:
        """STRICT_SPREAD only takes fresh nodes. PACK and SPREAD are preferences, which Ray keeps as far as the room
        allows: here both count what is needed at the least, on nodes of the gang first. To prefer fresh nodes for
        SPREAD would place differently once the bought ones are there, and buy again."""
        if not fresh_only:
            for index in sorted(attempt.taken):
                if (within is None or index in within) and self._rooms.fits_at(index, shape):
                    return index
        candidates = within if within is not None else self._candidates(shape)
        start = attempt.position.get(shape, 0)
        for position in range(start, len(candidates)):
            index = candidates[position]
            if index not in attempt.taken and self._rooms.fits_at(index, shape):
                self._passed(shape, attempt, position + 1, within)
                return index
        self._passed(shape, attempt, len(candidates), within)
        return None

    def _passed(self, shape: Shape, attempt: _Attempt, position: int, within: Sequence[int] | None) -> None:
        if within is None:
            self._open[shape].dead += position - attempt.position.get(shape, 0) - 1
        attempt.position[shape] = position

    def _candidates(self, shape: Shape) -> list[int]:
        size, known = len(self._rooms), self._open.get(shape)
        if known is None:
            indices = np.flatnonzero(self._rooms.copies(shape) > 0).tolist()
            known = self._open[shape] = _Open(indices, size)
        elif known.known < size:
            known.indices.extend(range(known.known, size))
            known.known = size
        return known.indices

    def _held_by(self, gang: Gang) -> Iterator[int]:
        if gang.placed_on:
            for index, slot in enumerate(self._rooms.slots):
                if slot.ray_node_id and slot.ray_node_id in gang.placed_on:
                    yield index

    def _in(self, piece: Shape, region: str) -> Shape:
        if region == ANYWHERE:
            return piece
        if (piece, region) not in self._inside:
            self._inside[piece, region] = inside(piece, region, self._regions)
        return self._inside[piece, region]

    # --- effects on the rooms ---------------------------------------------------------------------------------

    def _put(self, placed: Placed, copies: int) -> None:
        for index, piece in placed:
            self._rooms.put(index, piece, copies)

    def _buy(self, shape: Shape, count: int, asker: Asker) -> int | None:
        slots = self._buyer.buy(shape, count, asker)
        if not slots:
            return None
        first = self._append(slots)
        return next(index for index in range(first, len(self._rooms)) if self._rooms.fits_at(index, shape))

    def _append(self, slots: Sequence[Slot]) -> int:
        first = len(self._rooms)
        self._rooms.append(slots)
        self._note_slices(first)
        self._count_regions(slots, 1)
        return first

    def _give_back(self, length: int) -> None:
        slots = self._rooms.slots[length:]
        if not slots:
            return
        self._buyer.undo(slots)
        self._rooms.truncate(length)
        self._count_regions(slots, -1)
        for slot in slots:
            self._slices.pop(slot.name, None)
        for known in self._open.values():
            while known.indices and known.indices[-1] >= length:
                known.indices.pop()
            known.known = min(known.known, length)

    def _note_slices(self, first: int) -> None:
        for index in range(first, len(self._rooms)):
            slot = self._rooms.slots[index]
            if slot.offer is not None and slot.offer.hosts > 1:
                self._slices.setdefault(slot.name, []).append(index)

    def _count_regions(self, slots: Sequence[Slot], step: int) -> None:
        counts = Counter(slot.labels.get(LABEL_REGION, ANYWHERE) for slot in slots)
        counts[ANYWHERE] = len(slots)
        for region, count in counts.items():
            self._grown[region] = self._grown.get(region, 0) + step * count


def _rows(place: PlaceRows, copies: Ints, size: int, most: int) -> Ints:
    rows = Rows(size)
    place(copies, rows, most)
    return rows.slots


def _next_purchase(copies: Ints, size: int, gangs: int, asker: Asker) -> tuple[int, Asker]:
    """(how many requests, for whom) to buy for next: of bundles that lie apart, those that one more gang lacks, on
    nodes that may serve the others, too."""
    if not asker.alone:
        return gangs * size - int(copies.sum()), asker
    return size - int(np.count_nonzero(copies)), replace(asker, sharers=gangs)


def fits_slice(gang: Gang, hosts: Sequence[Slot]) -> bool:
    return GangPlaces(Rooms(hosts), NoBuyer()).place(gang) is not None
