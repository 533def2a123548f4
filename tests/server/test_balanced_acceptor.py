"""Workers that share a socket take connections in turns, and one that is alone takes them all."""

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from posrec.server import balanced_acceptor as module
from posrec.server.balanced_acceptor import ABSENT, Door, Share


@pytest.mark.parametrize(("others", "mine", "ahead"), [
    ([0], 0, False), ([0], 1, False), ([0], 2, True), ([1], 2, False), ([1], 3, True), ([7], 8, False), ([7], 9, True),
    ([8], 10, False), ([8], 11, True), ([80], 91, False), ([80], 92, True), ([5], 0, False), ([9, 0, 9], 2, True),
    ([9, 9, 1], 2, False), ([ABSENT], 50, False), ([ABSENT, 9], 50, True),
])  # fmt: skip
def test_who_is_ahead(tmp_path: Path, others: list[int], mine: int, ahead: bool) -> None:
    Share.make(tmp_path / "counts", 1 + len(others))
    for place, count in enumerate(others, start=1):
        Share(tmp_path / "counts", place).note(count)
    assert Share(tmp_path / "counts", 0).is_ahead(mine) is ahead


def test_nobody_hesitates_for_a_worker_that_takes_nobody(tmp_path: Path) -> None:
    Share.make(tmp_path / "counts", 2)
    mine, other = Share(tmp_path / "counts", 0), Share(tmp_path / "counts", 1)
    assert not mine.is_ahead(30)  # the other loads its run still
    other.note(0)
    assert mine.is_ahead(30)
    Share(tmp_path / "counts", 1)  # it has died; this is its successor
    assert not mine.is_ahead(30)


class House:
    """Doors of several workers in one process."""

    def __init__(self, path: Path, workers: int) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.path = path
        Share.make(path, workers)
        self.rooms: list[list[socket.socket]] = []
        self.doors: list[Door] = []
        self.sockets = [self.listening]

    def open(self, place: int) -> None:
        room: list[socket.socket] = []
        own = self.listening.dup()

        async def enter(connection: socket.socket) -> None:
            room.append(connection)

        self.rooms.append(room)
        self.sockets.append(own)
        self.doors.append(Door(own, Share(self.path, place), lambda: len(room), enter))

    @property
    def counts(self) -> list[int]:
        return [len(room) for room in self.rooms]

    async def come(self, stack: ExitStack) -> None:
        before = sum(self.counts)
        stack.enter_context(socket.create_connection(self.listening.getsockname()))
        await became(lambda: sum(self.counts) > before)


async def became(check: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end
        await asyncio.sleep(0.0005)


@asynccontextmanager
async def house(path: Path, workers: int, doors: int) -> AsyncIterator[House]:
    made = House(path, workers)
    for place in range(doors):
        made.open(place)
    try:
        yield made
    finally:
        for door in made.doors:
            door.close()
            await door.wait_closed()
        for one in [*made.sockets, *(one for room in made.rooms for one in room)]:
            one.close()


def test_two_take_turns(tmp_path: Path) -> None:
    async def play() -> list[int]:
        async with house(tmp_path / "counts", 2, 2) as made:
            with ExitStack() as stack:
                for _ in range(30):
                    await made.come(stack)
                return made.counts

    few, many = sorted(asyncio.run(play()))
    assert (few + many, many - few <= 4) == (30, True)


def test_nobody_waits_for_one_that_does_not_come(tmp_path: Path) -> None:
    """The other worker computes: its part is taken after a while."""

    async def play() -> list[int]:
        async with house(tmp_path / "counts", 2, 1) as made:
            Share(made.path, 1).note(0)
            with ExitStack() as stack:
                for _ in range(10):
                    await made.come(stack)
                return made.counts

    assert asyncio.run(play()) == [10]


def test_a_closed_door_takes_nobody(tmp_path: Path) -> None:
    async def play() -> list[int]:
        async with house(tmp_path / "counts", 2, 2) as made:
            with ExitStack() as stack:
                await made.come(stack)
                made.doors[made.counts.index(0)].close()
                for _ in range(5):
                    await made.come(stack)
                return made.counts

    assert sorted(asyncio.run(play())) == [0, 6]


def test_it_goes_on_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AFTER_ERROR", 0.01)
    failures = [OSError(errno.EMFILE, "too many open files"), ConnectionAbortedError()]

    class Listening:
        """A socket that can't be had at first."""

        def __init__(self, real: socket.socket) -> None:
            self.real = real

        def accept(self) -> Any:
            if failures:
                raise failures.pop()
            return self.real.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    async def play() -> list[int]:
        async with house(tmp_path / "counts", 1, 1) as made:
            made.doors[0].listening = Listening(made.doors[0].listening)  # type: ignore[assignment]
            with ExitStack() as stack:
                await made.come(stack)
                await made.come(stack)
                return made.counts

    assert asyncio.run(play()) == [2]
    assert failures == []


def test_whoever_is_at_the_door_is_in_before_it_is_closed(tmp_path: Path) -> None:
    """Else nobody tells that connection to end, and stopping waits for it."""
    entered: list[str] = []

    async def enter(connection: socket.socket) -> None:
        await asyncio.sleep(0.05)
        entered.append("in")
        connection.close()

    async def play() -> None:
        Share.make(tmp_path / "counts", 1)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            door = Door(listening, Share(tmp_path / "counts", 0), lambda: 0, enter)
            with socket.create_connection(listening.getsockname()):
                await became(lambda: bool(door.entering))
                door.close()
                assert entered == []
                await door.wait_closed()
                assert entered == ["in"]

    asyncio.run(play())
