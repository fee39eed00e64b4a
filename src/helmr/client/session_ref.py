"""A handle on one Session: its Turns, its timeline, its controls."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeVar, cast

from helmr.client.contract import Contract
from helmr.client.event_stream import EventStream, read_event
from helmr.client.reading import read, read_value
from helmr.client.transport import Transport, segment
from helmr.client.turn_ref import TurnRef
from helmr.protocol.errors import UnreadableAnswer
from helmr.protocol.ids import SessionId
from helmr.protocol.shapes import (
    EventPage,
    Explanation,
    Session,
    SessionDataReceipt,
    SessionInterruptReceipt,
    SessionResumeReceipt,
    SessionStatusReceipt,
    TurnPage,
    TurnReceipt,
)
from helmr.protocol.unset import UNSET

I_contra = TypeVar("I_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class SessionRef(Generic[I_contra, R_co]):
    """A Session by its id; making one sends nothing.

    Writes take an `idempotency_key`; without one each call makes its own, which its transport retries keep [S4].
    """

    __slots__ = ("_contract", "_transport", "events", "id", "turns")

    def __init__(self, transport: Transport, session_id: str, contract: Contract[I_contra, R_co]) -> None:
        self._transport = transport
        self._contract = contract
        self.id = SessionId(session_id)
        self.turns: SessionTurns[R_co] = SessionTurns(transport, session_id, contract)
        self.events = SessionEvents(transport, session_id)

    def __repr__(self) -> str:
        return f"SessionRef({self.id})"

    async def get(self) -> Session:
        """The Session now, its holds included."""
        return read(Session, await self._transport.call("GET", self._path()))

    async def explain(self) -> Explanation:
        """Why it does what it does now, in one sentence, with the facts behind it [S23]."""
        return read(Explanation, await self._transport.call("GET", self._path("/explain")))

    async def enqueue(self, input: I_contra, *, idempotency_key: str | None = None) -> TurnRef[R_co]:
        """Admit a new Turn, also while one runs and while held [S6]. Raises `SessionNotOpen`, `AdmissionUnavailable`."""
        body = {"input": self._contract.encode(input)}
        answer = await self._transport.write(self._path("/turns"), body, idempotency_key)
        receipt = read(TurnReceipt, answer)
        return TurnRef(self._transport, self.id, receipt.id, decode=self._contract.decode, sequence=receipt.sequence)

    async def interrupt(self, *, idempotency_key: str | None = None) -> SessionInterruptReceipt:
        """Stop its running Turn and hold it and the Sessions it owns; the receipt names the hold [S16]."""
        return read(SessionInterruptReceipt, await self._control("/interrupt", {}, idempotency_key))

    async def resume(self, *, hold_id: str, idempotency_key: str | None = None) -> SessionResumeReceipt:
        """Release exactly this hold, on the Session that `hold.session_id` names [S17]."""
        return read(SessionResumeReceipt, await self._control("/resume", {"hold_id": hold_id}, idempotency_key))

    async def close(self, *, idempotency_key: str | None = None) -> SessionStatusReceipt:
        """Refuse new Turns in the owned tree and close when the work that can run is done [S18]."""
        return read(SessionStatusReceipt, await self._control("/close", {}, idempotency_key))

    async def cancel(self, *, idempotency_key: str | None = None) -> SessionStatusReceipt:
        """Cancel all running and queued Turns of the owned tree and close it at once [S19]."""
        return read(SessionStatusReceipt, await self._control("/cancel", {}, idempotency_key))

    async def delete_data(self, *, idempotency_key: str | None = None) -> SessionDataReceipt:
        """Expire what was said in this Session, which must be closed; it can't be undone [S22]. Raises `SessionNotClosed`.

        Inputs, results, responses, messages, questions and answers go, and the timeline; Turns stay with ids, statuses and times.
        """
        answer = await self._transport.write(self._path("/data"), UNSET, idempotency_key, method="DELETE")
        return read(SessionDataReceipt, answer)

    async def _control(self, rest: str, body: dict[str, Any], idempotency_key: str | None) -> Any:
        return await self._transport.write(self._path(rest), body, idempotency_key)

    def _path(self, rest: str = "") -> str:
        return f"/v1/sessions/{segment(self.id)}{rest}"


class SessionTurns(Generic[R_co]):
    """The Turns of one Session."""

    __slots__ = ("_contract", "_session_id", "_transport")

    def __init__(self, transport: Transport, session_id: str, contract: Contract[Any, R_co]) -> None:
        self._transport = transport
        self._session_id = session_id
        self._contract = contract

    def ref(self, id: str) -> TurnRef[R_co]:
        """A handle on a Turn; sends nothing."""
        return TurnRef(self._transport, self._session_id, id, decode=self._contract.decode)

    async def list(self, *, cursor: str | None = None, limit: int | None = None) -> TurnPage:
        """A page of Turns in admission order; `limit` 1-100, 50 when omitted."""
        query = {"cursor": cursor, "limit": limit}
        return read(TurnPage, await self._transport.call("GET", f"/v1/sessions/{segment(self._session_id)}/turns", query=query))


class SessionEvents:
    """The timeline of one Session [E1]."""

    __slots__ = ("_path", "_transport")

    def __init__(self, transport: Transport, session_id: str) -> None:
        self._transport = transport
        self._path = f"/v1/sessions/{segment(session_id)}/events"

    async def list(self, *, after: int = 0, limit: int | None = None) -> EventPage:
        """One page of Events above `after`; `limit` 1-1000, 100 when omitted [E3]. Raises `InvalidCursor`, `CursorExpired`."""
        data = (await self._transport.call("GET", self._path, query={"after": after, "limit": limit})).json()
        return read_event_page(data)

    def stream(self, *, after: int = 0) -> EventStream:
        """Follow the timeline from `after` until the Session is closed and sealed [E4]."""
        return EventStream(self._transport, self._path + "/stream", after)


def read_event_page(data: Any) -> EventPage:
    """A page from decoded JSON; unknown kinds of Events pass."""
    members = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    records = members.get("records")
    if not isinstance(records, list):
        raise UnreadableAnswer("The server's answer is no page of events.")
    events = tuple(read_event(record) for record in cast("list[Any]", records))
    return dataclasses.replace(read_value(EventPage, {**members, "records": []}), records=events)
