"""What waits in the ledger in Redis, for release and for operators.

Each slot has its own sums and queues, kept by the same scripts that put and take handles; a look at the whole
asks all slots in one go. What one router takes, no other does.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from router.ledger.calls import Script
from router.ledger.codec import NotAValue, decode_trace
from router.ledger.redis_slots import Slots, branch_name, branch_place, read_handle, tag_of
from router.ledger.store import (
    Candidate,
    Finish,
    Handle,
    Leaving,
    LedgerUnavailable,
    Line,
    Page,
    Pinned,
    Put,
)

FINISH_CODES: Final = {Finish.OTHER: "-", Finish.TOOL_CALLS: "t", Finish.STOP: "s", Finish.LENGTH: "l"}
MAX_OWNED: Final = 1_000
"""Branches of one conversation that its end takes; far more than a client makes under one id."""
_SPARE_LINES: Final = 16
"""More than a page needs: branches that were used at the very same time stand side by side."""
_TAKE: Final = Script.named("take")
_RECOUNT: Final = Script.named("recount")


class RedisPins(Slots):
    """See ``router.ledger.store.PinLedger``."""

    async def pinned(self) -> Mapping[str, Pinned]:
        slots = self._slots()
        sums = await self._calls.pipeline(slots[0] + b"P", [("HGETALL", slot + b"P") for slot in slots])
        tokens: dict[str, int] = {}
        handles: dict[str, int] = {}
        for told in sums:
            for field, value in _pairs(told):
                into = tokens if field[:1] == b"t" else handles
                node = field[1:].decode()
                into[node] = into.get(node, 0) + int(value)
        # A server that is short of memory may drop sums, and those of what waits on begin at nothing.
        return {
            node: Pinned(max(tokens.get(node, 0), 0), count) for node, count in handles.items() if count > 0
        }

    async def oldest(self, decode: str, finish: Finish) -> Candidate | None:
        queue = b"w" + f"{FINISH_CODES[finish]}{decode}".encode()
        slots = self._slots()
        commands: list[tuple[Any, ...]] = [("ZRANGE", slot + queue, 0, 0, "WITHSCORES") for slot in slots]
        heads = await self._calls.pipeline(slots[0] + b"P", commands)
        first = sorted(
            (float(head[1]), slot, head[0])
            for slot, told in zip(slots, heads, strict=True)
            if (head := _flat(told))
        )
        now_s = self._now()
        for since_s, slot, serial in first:
            fields = ("v", "ht", "d")
            (told,) = await self._calls.pipeline(slot + b"P", [("HMGET", slot + b"b" + serial, *fields)])
            version, tokens, deadline_s = told
            name = branch_name(slot, serial)
            if version is None:
                # The server has dropped the branch by itself; what is behind it in the queue still waits.
                await self._calls.pipeline(slot + b"P", [("ZREM", slot + queue, serial)])
                continue
            if deadline_s is None or not float(deadline_s) > now_s:
                # Late: it does not stand in the way again.
                _, handle = await self._release(slot, serial, version=str(int(version)))
                if handle is not None:  # given back a moment ago, and taken by now
                    self.on_left(handle, Leaving.BUDGET)
                continue
            return Candidate(name, int(version), decode, finish, int(tokens), since_s, float(deadline_s))
        return None

    async def take(self, branch: str, version: int) -> Handle | None:
        place = branch_place(branch)
        if place is None:
            return None
        _, handle = await self._release(self._slot(place[0]), place[1], version=str(version))
        return handle

    async def end(self, owner: bytes) -> tuple[Handle, ...] | None:
        if not owner:
            return None
        key, asked_s = self._owner_key(owner), self._now()
        handles: list[Handle] = []
        known = False
        # First of all: a turn that is under way either sees this, or its branch is among those asked for.
        ended = ("SET", self._ended_key(owner), repr(asked_s), "PX", self._trace_ttl_ms)
        _, names = await self._calls.pipeline(key, [ended, ("ZREVRANGE", key, 0, MAX_OWNED - 1)])
        try:
            for name in names:
                place = branch_place(name.decode())
                if place is None:
                    continue
                theirs, handle = await self._release(
                    self._slot(place[0]), place[1], owner=owner, leaving=Leaving.ENDED
                )
                known = known or theirs
                if handle is not None:
                    handles.append(handle)
            # A turn that was put meanwhile is a new beginning under the same name.
            await self._calls.pipeline(key, [("ZREMRANGEBYSCORE", key, "-inf", f"({asked_s!r}")])
        except LedgerUnavailable:
            # What was taken so far is nobody's any more, and has to be released; the rest can be ended again.
            if not handles:
                raise
        except asyncio.CancelledError:
            for handle in handles:
                self.on_left(handle, Leaving.ENDED)
            raise
        return tuple(handles) if known else None

    async def conversations(self, *, cursor: str | None, limit: int) -> Page:
        before_s, after = _read(cursor)
        slots = self._slots()
        least = f"({self._now() - self._trace_ttl_s!r}"
        most = "+inf" if before_s is None else repr(before_s)
        page = ("WITHSCORES", "LIMIT", 0, limit + _SPARE_LINES)
        commands: list[tuple[Any, ...]] = [
            ("ZREVRANGEBYSCORE", slot + b"B", most, least, *page) for slot in slots
        ]
        told = await self._calls.pipeline(slots[0] + b"B", commands)
        used = sorted(
            (
                (float(score), branch_name(slot, serial))
                for slot, one in zip(slots, told, strict=True)
                for serial, score in _pairs(_flat(one))
            ),
            reverse=True,
        )
        rest = [one for one in used if before_s is None or one < (before_s, after)]
        chosen = rest[:limit]
        lines = await self._lines(chosen)
        more = len(rest) > limit
        return Page(lines, f"{chosen[-1][0]!r}/{chosen[-1][1]}" if more and chosen else None)

    async def _lines(self, chosen: list[tuple[float, str]]) -> tuple[Line, ...]:
        places = [(used_s, name, branch_place(name)) for used_s, name in chosen]
        known = [(used_s, name, place) for used_s, name, place in places if place is not None]
        if not known:
            return ()
        commands: list[tuple[Any, ...]] = [
            ("HMGET", self._slot(tag) + b"b" + serial, "n", "t", "c", "ht", "d")
            for _, _, (tag, serial) in known
        ]
        told = await self._calls.pipeline(commands[0][1], commands)
        now_s, lines = self._now(), []
        for (used_s, name, _), (turns, trace, conversation, tokens, deadline_s) in zip(
            known, told, strict=True
        ):
            if turns is None:
                continue
            waits = deadline_s is not None and float(deadline_s) > now_s
            try:
                lines.append(
                    Line(
                        branch=name,
                        conversation=conversation.decode(),
                        turns=int(turns),
                        trace=decode_trace(trace),
                        pinned_tokens=int(tokens) if waits else 0,
                        used_at_s=used_s,
                        deadline_s=float(deadline_s) if waits else None,
                    )
                )
            except NotAValue:
                continue
        return tuple(lines)

    async def _release(
        self,
        slot: bytes,
        serial: bytes,
        *,
        version: str = "",
        owner: bytes = b"",
        leaving: Leaving = Leaving.BUDGET,
    ) -> tuple[bool, Handle | None]:
        """Take a branch's handle; whether the branch was the one that was meant.

        ``leaving`` is told of one that comes when nobody waits for it any more: it is in the store no more.
        """

        async def taken(reply: Any) -> None:
            handle = read_handle(reply[2])
            if handle is not None:
                self.on_left(handle, leaving)

        known, expired, raw = await self._calls.run(
            _TAKE, (slot + b"b" + serial,), (slot, repr(self._now()), serial, version, owner), late=taken
        )
        self._expired_handles += expired
        return bool(known), read_handle(raw)

    async def _recount(self, slot: bytes) -> None:
        """Drop what is over in a slot, and count it anew where its sums do not add up."""
        expired, _ = await self._calls.run(
            _RECOUNT, (slot + b"P",), (slot, repr(self._now()), self._trace_ttl_ms)
        )
        self._expired_handles += expired

    async def _own(self, turn: Put, branch: str) -> None:
        """Remember whose a branch is: the newest ``MAX_OWNED`` of those that may still be there.

        The branch itself says so, too, and this only leads to it: without an answer the turn goes on. A turn
        whose conversation was ended meanwhile gives up again what it has left.
        """
        owner, now_s = turn.owner, self._now()
        key = self._owner_key(owner)
        with suppress(LedgerUnavailable):
            *_, ended_s = await self._calls.pipeline(
                key,
                [
                    ("ZADD", key, repr(now_s), branch),
                    ("ZREMRANGEBYSCORE", key, "-inf", f"({now_s - self._trace_ttl_s!r}"),
                    ("ZREMRANGEBYRANK", key, 0, -MAX_OWNED - 1),
                    ("PEXPIRE", key, self._trace_ttl_ms),
                    ("GET", self._ended_key(owner)),
                ],
            )
            place = branch_place(branch)
            if ended_s is None or turn.began_s is None or place is None or turn.began_s >= float(ended_s):
                return
            _, handle = await self._release(
                self._slot(place[0]), place[1], owner=owner, leaving=Leaving.ENDED
            )
            if handle is not None:
                self.on_left(handle, Leaving.ENDED)
            await self._calls.pipeline(key, [("ZREM", key, branch)])

    def _owner_key(self, owner: bytes) -> bytes:
        return self._slot(tag_of(owner)) + b"o" + owner

    def _ended_key(self, owner: bytes) -> bytes:
        return self._slot(tag_of(owner)) + b"e" + owner


def _pairs(told: Any) -> list[tuple[Any, Any]]:
    """Fields and values, in whichever form the client gives them."""
    if isinstance(told, dict):
        return list(told.items())
    return list(zip(told[0::2], told[1::2], strict=True))


def _flat(told: Any) -> list[Any]:
    """Members and scores in a row, in whichever form the client gives them."""
    return (
        [part for one in told for part in one] if told and isinstance(told[0], tuple | list) else list(told)
    )


def _read(cursor: str | None) -> tuple[float | None, str]:
    """When the branch that the page before ended with was used, and its id; None for the first page."""
    at_s, _, name = (cursor or "").partition("/")
    try:
        if branch_place(name) is not None:
            return float(at_s), name
    except ValueError:
        pass
    return None, ""
