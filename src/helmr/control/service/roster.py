"""Which Computers are attached to this control plane, and which Session processes run on them. Memory only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from helmr.control.service.guests import Guest, Seat
from helmr.protocol.link import control


class Roster:
    def __init__(self) -> None:
        self._seats: dict[str, Seat] = {}
        self._guests: dict[str, Guest] = {}
        self.on_lost: Callable[[Seat], None] = lambda seat: None
        """Called with a seat that is left."""

    def seat_of(self, computer_id: str) -> Seat | None:
        return self._seats.get(computer_id)

    def add_seat(self, seat: Seat) -> None:
        old = self._seats.get(seat.computer_id)
        if old is not None:
            self.remove_seat(old)
        self._seats[seat.computer_id] = seat

    def remove_seat(self, seat: Seat) -> None:
        """Its link is gone; what its processes know is told again when it is back."""
        if self._seats.get(seat.computer_id) is seat:
            del self._seats[seat.computer_id]
        for guest in list(seat.guests.values()):
            self.drop(guest)
        self.on_lost(seat)

    def guest_of(self, session_id: str) -> Guest | None:
        """The Session's process, if its Computer is attached here."""
        return self._guests.get(session_id)

    def meet(self, seat: Seat, row: Any) -> Guest:
        guest = Guest(seat, str(row["id"]), str(row["root_session_id"]), row["channel"], row["last_op"])
        seat.guests[guest.number] = guest
        self._guests[guest.session_id] = guest
        return guest

    def drop(self, guest: Guest) -> None:
        guest.forget()
        guest.seat.guests.pop(guest.number, None)
        if self._guests.get(guest.session_id) is guest:
            del self._guests[guest.session_id]

    def kill(self, computer_id: str, channel: int, reason: str) -> None:
        """End a process and all that descends from it; its exit is reported by the worker."""
        seat = self._seats.get(computer_id)
        if seat is not None:
            seat.link.send(control("session.kill", computer=computer_id, channel=channel, reason=reason))
