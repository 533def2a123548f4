"""A marketplace of second-hand goods: most listings live for two to six days, and about a quarter
of a day's clicks are on listings that the day before did not have.

A visitor looks for something in a category, described by a word of the title, and goes from listing
to listing as they are sorted: newest first.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

START = 1_772_323_200_000  # 2026-03-01
HOUR = 3_600_000
DAY = 24 * HOUR
GOODS = ("bike", "sofa", "lamp", "phone", "guitar", "jacket", "tent", "camera")
KINDS = ("red", "oak", "vintage", "small", "repaired", "unused")
SHORTEST_LIFE = 2.0  # days
LONGEST_LIFE = 6.0
SHARE_OF_LASTING = 0.1  # listings that nobody buys for weeks
ONE_CLICK_VISITS = 0.25
# What a visitor does after a click: the next listing of the same kind, a listing of the category,
# one that they have seen; else any listing.
NEXT = 0.6
SAME_CATEGORY = 0.2
BACK = 0.1

# The options of preparing that name the nested fields of the log.
COLUMNS = (
    "session_column=visit.id",
    "item_column=listing.id",
    "time_column=event.time",
)


class Listing(NamedTuple):
    id: str
    category: str
    kind: str
    price: int
    created: int
    expires: int


class Event(NamedTuple):
    visit: str
    item: str
    time: int


@dataclass(frozen=True)
class Marketplace:
    """The same days for the same numbers; day 0 begins with the listings of the days before."""

    days: int = 10
    listings_a_day: int = 60
    visits_a_day: int = 400
    seed: int = 0

    @cached_property
    def listings(self) -> list[Listing]:
        """In the order of their creation."""
        draw = np.random.default_rng(self.seed)
        before = round(LONGEST_LIFE)
        count = self.listings_a_day * (self.days + before)
        created = START + np.sort(draw.uniform(-before, self.days, count)) * DAY
        lives = draw.uniform(SHORTEST_LIFE, LONGEST_LIFE, count)
        lives[draw.random(count) < SHARE_OF_LASTING] = 30
        listings = []
        for number in range(count):
            expires = int(created[number] + lives[number] * DAY)
            if expires <= START:
                continue
            category = int(draw.integers(len(GOODS)))
            kind = str(draw.choice(KINDS))
            price = round(20 * (category + 1) * draw.lognormal(0, 0.4))
            id = f"listing-{number:05}"
            when = int(created[number])
            listings.append(Listing(id, GOODS[category], kind, price, when, expires))
        return listings

    @cached_property
    def events(self) -> list[Event]:
        """All clicks in order of time."""
        draw = np.random.default_rng(self.seed + 1)
        events = []
        for day in range(self.days):
            starts = START + (day + draw.random(self.visits_a_day)) * DAY
            for number, start in enumerate(sorted(starts.tolist())):
                visit = f"visit-{day}-{number}"
                time = int(start)
                for listing in self.visit(time, draw):
                    events.append(Event(visit, listing.id, time))
                    time += int(draw.exponential(20_000)) + 500
        return sorted(events, key=lambda event: event.time)

    @cached_property
    def shelves(self) -> dict[tuple[str, ...], list[Listing]]:
        """The listings of everything, of each category and of each kind in it, oldest first."""
        shelves: defaultdict[tuple[str, ...], list[Listing]] = defaultdict(list)
        for listing in self.listings:
            for shelf in ((), (listing.category,), (listing.category, listing.kind)):
                shelves[shelf].append(listing)
        return shelves

    def alive(self, time: int, *shelf: str) -> list[Listing]:
        """The listings of a shelf that could be bought when this hour began, oldest first."""
        key = (time // HOUR, *shelf)
        if key not in self.pages:
            begin = time // HOUR * HOUR
            self.pages[key] = [
                listing
                for listing in self.shelves[shelf]
                if listing.created <= begin < listing.expires
            ]
        return self.pages[key]

    @cached_property
    def pages(self) -> dict[tuple[int | str, ...], list[Listing]]:
        return {}

    def visit(self, time: int, draw: np.random.Generator) -> list[Listing]:
        """What one visitor clicks from this time on."""

        def any_of(listings: Sequence[Listing]) -> Listing:
            # The newest are at the top of the page.
            back = int(draw.exponential(len(listings) / 3))
            return listings[-1 - back % len(listings)]

        clicks = [any_of(self.alive(time))]
        if draw.random() < ONE_CLICK_VISITS:
            return clicks
        for _ in range(int(draw.geometric(0.4))):
            last = clicks[-1]
            chance = draw.random()
            same_kind = self.alive(time, last.category, last.kind)
            if chance < NEXT and last in same_kind[1:]:
                clicks.append(same_kind[same_kind.index(last) - 1])
            elif chance < NEXT + SAME_CATEGORY:
                clicks.append(any_of(self.alive(time, last.category)))
            elif chance < NEXT + SAME_CATEGORY + BACK:
                clicks.append(clicks[int(draw.integers(len(clicks)))])
            else:
                clicks.append(any_of(self.alive(time)))
        return clicks

    def log(self, days: int, night: str = "good") -> list[Event]:
        """The clicks of the first days, the latest of which arrived as this kind of night."""
        end = START + days * DAY
        before = [event for event in self.events if event.time < end - DAY]
        latest = [event for event in self.events if end - DAY <= event.time < end]
        return before + arrived(latest, night, np.random.default_rng(days))

    def write_log(self, path: Path, days: int, night: str = "good") -> Path:
        """JSON lines with nested fields, as an analytics tool exports them."""
        lines = []
        for visit, item, time in self.log(days, night):
            second, millisecond = divmod(time, 1000)
            moment = f"{np.datetime64(second, 's')}.{millisecond:03}Z"
            row = {
                "event": {"type": "view", "time": moment},
                "visit": {"id": visit},
                "listing": {"id": item},
            }
            lines.append(json.dumps(row) + "\n")
        path.write_text("".join(lines))
        return path

    def write_items(self, path: Path, days: int) -> Path:
        """All listings that were created in the first days and before."""
        lines = []
        for listing in self.listings:
            if listing.created < START + days * DAY:
                title = f"{listing.kind} {listing.category}"
                lines.append(json.dumps({**listing._asdict(), "title": title}) + "\n")
        path.write_text("".join(lines))
        return path


def arrived(events: list[Event], night: str, draw: np.random.Generator) -> list[Event]:
    """A day's clicks as they are in the log after a good or a bad night."""
    if night == "good":
        return events
    if night == "empty":
        return []
    if night == "partial":
        return [event for event in events if event.time < events[0].time + 2 * HOUR]
    if night == "doubled":
        return [event for event in events for _ in range(2)]
    if night == "equal times":
        return [event._replace(time=events[0].time) for event in events]
    if night == "shuffled items":
        items = sorted({event.item for event in events})
        other = dict(zip(items, draw.permutation(items).tolist(), strict=True))
        return [event._replace(item=other[event.item]) for event in events]
    assert night == "shuffled sessions"
    visits = draw.permutation([event.visit for event in events]).tolist()
    pairs = zip(events, visits, strict=True)
    return [event._replace(visit=visit) for event, visit in pairs]
