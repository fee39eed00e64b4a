"""The host of the model's house."""

from __future__ import annotations

from typing import Any

from tests.service.scripted import ScriptedHost


class Host(ScriptedHost):
    """A host whose processes may exit when they are told to end, and that stops Computers."""

    auto_exit = True

    def on_message(self, message: bytes) -> None:
        super().on_message(message)
        for process in list(self.processes.values()):
            if self.auto_exit and process.alive and any(said["t"] == "session.end" for said in process.received):
                process.die("exited")

    def _computer_stop(self, said: dict[str, Any]) -> None:
        if self.computers.get(said["computer"], {}).get("fence") == said["fence"]:
            self.forget_computer(said["computer"])

    def forget_computer(self, computer: str) -> None:
        """It and all of its processes are gone."""
        self.computers.pop(computer, None)
        for slot in [slot for slot, held in self.slots.items() if held == computer]:
            del self.slots[slot]
        for process in self.processes.values():
            if process.computer == computer:
                process.alive = False
        for identity_ in [identity_ for identity_ in self.exits if identity_[0] == computer]:
            del self.exits[identity_]
