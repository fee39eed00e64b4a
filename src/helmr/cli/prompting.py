"""Questions of what is followed, asked on the terminal. SPEC 13, [Q5].

A question ends at the terminal as it ends anywhere: by the first answer, whoever gives it, or by its cancellation. What was typed before a
question was shown, or while it ended, answers nothing: an answer is typed to the question that is seen (UD-62).
"""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from helmr.cli.terminal import Output
from helmr.cli.wording import Question, asked_lines, how_to_answer, invitation, read_answer, said
from helmr.protocol.errors import AnswerInvalid, HelmrError, QuestionAlreadyResponded, QuestionCancelled

if TYPE_CHECKING:
    from helmr.client import SessionRef, TurnAsks
    from helmr.protocol.shapes import Event

LINE_BYTES: Final = 4095
"""The longest line that a terminal gives whole, its end not counted."""


@asynccontextmanager
async def people(session: SessionRef[Any, Any], output: Output) -> AsyncGenerator[Asker, None]:
    """Who is told of the questions of a timeline: the person at the terminal, or nobody, for whom a command is said instead."""
    if output.as_json or not _at_terminal():
        yield Asker(output)
        return
    person = Person(session, output)
    try:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(person.ask())
            try:
                yield person
            finally:
                asking.cancel()
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None


class Asker:
    """Says what is asked, the command that answers it, and how it ends."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._questions: dict[str, Question] = {}

    def saw(self, event: Event) -> None:
        """A question of the timeline was asked, answered or cancelled."""
        data = cast("Mapping[str, Any]", event.data)
        id = str(data["question_id"])
        if event.kind == "question.asked":
            self._questions[id] = data["question"]
            self._asked(id, str(event.turn_id))
        elif event.kind == "question.responded":
            by: Mapping[str, Any] = data.get("responded_by") or {}
            answer = data.get("answer")
            what = "" if answer is None else f": {said(self._questions.get(id), answer)}"
            self._ended(id, f"- question answered by {by.get('kind')} {by.get('id')}{what}")
        else:
            self._ended(id, f"- question cancelled ({data.get('reason')})")

    @contextmanager
    def aside(self) -> Generator[None, None, None]:
        """Other output begins and ends on lines of its own."""
        yield

    def _asked(self, id: str, turn_id: str) -> None:
        question = self._questions[id]
        lines = ["- question asked:", *asked_lines(question, numbered=False), f"Answer it: {how_to_answer(id, question)}"]
        self._output.note("\n".join(lines))

    def _ended(self, id: str, note: str) -> None:
        self._output.note(note)


class Person(Asker):
    """Asks the person at the terminal, one question after another, beside what goes on."""

    def __init__(self, session: SessionRef[Any, Any], output: Output) -> None:
        super().__init__(output)
        self._session = session
        self._waiting: deque[tuple[str, str]] = deque()
        self._arrived = asyncio.Event()
        self._over: set[str] = set()
        self._shown: tuple[str, str, asyncio.Future[bytes | None]] | None = None
        """The question that a line is awaited for, the invitation behind which the cursor stands, and the line (None: it ended)."""

    async def ask(self) -> None:
        """Ask what comes, until cancelled."""
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            id, turn_id = self._waiting.popleft()
            await self._ask(id, self._session.turns.ref(turn_id).asks)

    @contextmanager
    def aside(self) -> Generator[None, None, None]:
        """Leave the invitation's line; write it again below."""
        if self._shown is not None:
            self._output.prompt("\n")
        yield
        if self._shown is not None:
            self._output.prompt(self._shown[1])

    def _asked(self, id: str, turn_id: str) -> None:
        self._waiting.append((id, turn_id))
        self._arrived.set()

    def _ended(self, id: str, note: str) -> None:
        self._over.add(id)
        if self._shown is not None and self._shown[0] == id:
            future = self._shown[2]
            self._leave()
            if not future.done():
                future.set_result(None)
        with self.aside():
            self._output.note(note)

    async def _ask(self, id: str, asks: TurnAsks) -> None:
        """Ask until there is an answer, or the question is over. One that was over when this timeline began is not shown."""
        question, response_id = self._questions[id], str(uuid.uuid4())
        try:
            if (await asks.get(id)).status != "pending" or id in self._over:
                return
        except HelmrError as error:
            self._output.note(f"Question {id} can't be read: {error}")
            return
        if not _at_terminal():
            super()._asked(id, "")  # sent to the background meanwhile
            return
        self._output.prompt("\n".join(["? " + id, *asked_lines(question, numbered=True)]) + "\n")
        while (line := await self._line(id, invitation(question))) is not None:
            if not line:
                self._output.note(f"Not answered. Later: {how_to_answer(id, question)}")
                return
            try:
                if len(line.rstrip(b"\n")) >= LINE_BYTES:
                    raise AnswerInvalid(f"A terminal cuts lines this long. Use: {how_to_answer(id, question)}")
                answer = read_answer(question, line.decode())
            except UnicodeDecodeError:
                self._output.note("That line is no UTF-8.")
                continue
            except AnswerInvalid as error:
                self._output.note(error.detail)
                continue
            try:
                await asks.respond(id, cast("Any", answer), response_id=response_id)
                return
            except (QuestionAlreadyResponded, QuestionCancelled) as error:
                self._output.note(f"Too late. {error.detail}")
                return
            except HelmrError as error:
                self._output.note(f"Not answered: {error}")
                if not error.retryable:
                    return

    async def _line(self, id: str, text: str) -> bytes | None:
        """The next line typed from now on, b"" at the end of input, None when the question is over first."""
        if id in self._over:
            return None
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes | None] = loop.create_future()
        descriptor = sys.stdin.fileno()
        termios.tcflush(descriptor, termios.TCIFLUSH)
        self._shown = (id, text, future)
        self._output.prompt(text)
        loop.add_reader(descriptor, _read, descriptor, future)
        try:
            line = await future
            if line is not None and line.endswith(b"\n"):
                self._shown = None  # the terminal has ended the line itself
            return line
        finally:
            loop.remove_reader(descriptor)
            if self._shown is not None:
                self._leave()

    def _leave(self) -> None:
        """Nobody types here any more: go on below the invitation."""
        self._shown = None
        self._output.prompt("\n")


def _read(descriptor: int, future: asyncio.Future[bytes | None]) -> None:
    if not future.done():
        try:
            future.set_result(os.read(descriptor, LINE_BYTES + 1))
        except OSError:  # the terminal is gone
            future.set_result(b"")


def _at_terminal() -> bool:
    """Whether a person sees standard error and types standard input, and this is what they type to."""
    try:
        return sys.stdin.isatty() and sys.stderr.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return False
