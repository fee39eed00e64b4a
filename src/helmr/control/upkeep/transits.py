"""Computers whose way from one state to the next took too long, though their worker answers, take another way [C1].

One that doesn't start is a failed start; one that doesn't get to sleep is woken; one that doesn't wake is given up, and its Sessions'
processes are made again. One that is not destroyed yet is to be destroyed again [C9].
"""

from __future__ import annotations

from typing import Final

from helmr.control.service.plane import ControlPlane
from helmr.control.store.queries import computers

BATCH: Final = 200


class Transits:
    name = "transits"
    interval = 5.0

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def run(self) -> bool:
        plane = self._plane
        async with plane.database.connection() as connection:
            rows = await computers.transits_overdue(connection, count=BATCH)
        for row in rows:
            computer_id = str(row["id"])
            if row["status"] == "deleting":
                await plane.deletions.repeat(computer_id)
            elif row["residency"] == "hibernating":
                await plane.sleeping.turn_around(computer_id)
            else:
                error = {"code": "computer_overdue", "message": f"The Computer was {row['residency']} for too long."}
                await plane.processes.computer_overdue(computer_id, row["fence"], error)
        return False
