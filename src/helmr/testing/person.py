"""The person of a test: answers what Agents ask, as scripted, through the public API.

A question that nobody expects fails the test, and its Session is cancelled, so that nothing waits for ever; an answer that was never
asked for fails it too. `is_away` leaves the questions to the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from helmr.client.client import HelmrClient
from helmr.client.session_ref import SessionRef
from helmr.protocol.errors import HelmrError, QuestionNotFound
from helmr.protocol.questions import Answer, Question, choice_answer, text_answer
from helmr.protocol.shapes import QuestionState
from helmr.protocol.unset import UnsetType
from helmr.sdk.agent import AgentDefinition
from helmr.testing.threads import LoopThread

Whom: TypeAlias = "AgentDefinition[object, object] | SessionRef[object, object] | object | str | None"
"""Who asks: an Agent, its id, a Session or its id; None for anybody."""
Which: TypeAlias = str | Callable[[QuestionState], bool] | None
"""Which question: one whose prompt has this text in it, or for which this is true; None for any."""


@dataclass(slots=True, eq=False)
class _Expected:
    whom: str | None
    which: Which
    said: str
    answer: Callable[[Question], Answer]
    """Raises `AnswerInvalid` when the question can't be answered so."""
    times: int | None
    given: int = 0

    def fits(self, agent: str, session_id: str, question: QuestionState) -> bool:
        if (self.times is not None and self.given >= self.times) or self.whom not in (None, agent, session_id):
            return False
        if callable(self.which):
            return self.which(question)
        return self.which is None or self.which in prompt_of(question)

    def __str__(self) -> str:
        which = f" to a question with {self.which!r}" if isinstance(self.which, str) else ""
        return f"{self.said}{which} for {self.whom or 'anybody'}"


class Person:
    """`runtime.person`. Expectations are tried in the order in which they were made; the first that fits answers."""

    def __init__(self, url: Callable[[], str], api_key: str) -> None:
        self._url, self._api_key = url, api_key
        self._expected: list[_Expected] = []
        self._away = False
        self._handled: set[str] = set()
        self._problems: list[str] = []
        self._thread: LoopThread | None = None
        self._client: HelmrClient | None = None
        self._looking: asyncio.Task[None] | None = None
        self._again = False
        self.asked: list[QuestionState] = []
        """Every question that reached this person, in order."""

    def answers(self, whom: Whom, answer: str, *, to: Which = None, times: int | None = 1) -> None:
        """Answer a text question of `whom`; `times=None`: any number of them, also none."""
        self._expected.append(_Expected(_name(whom), to, repr(answer), lambda _: text_answer(answer), times))

    def chooses(self, whom: Whom, *choices: str, to: Which = None, times: int | None = 1) -> None:
        """Answer a choice question of `whom` with these choices, by their ids or labels."""
        said = ", ".join(choices)
        self._expected.append(_Expected(_name(whom), to, f"choice of {said}", lambda question: _choice(question, choices), times))

    def is_away(self) -> None:
        """Questions stay pending until the test answers them itself, by `client.questions` or `turn.asks`."""
        self._away = True

    # --- what a runtime does with it --------------------------------------------------------------------------------------

    def called(self) -> None:
        """A question was stored. For any thread; returns at once."""
        if self._thread is None:
            self._thread = LoopThread("helmr-person", asyncio.new_event_loop())
        self._thread.post(self._look_soon)

    def stop(self) -> list[str]:
        """Leave; what was unexpected, and what was expected in vain."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.run(self._leave())
            thread.close()
        unused = [e for e in self._expected if e.times is not None and e.given < e.times]
        return self._problems + [f"The person's answer {e} was never asked for ({e.given} of {e.times} times)." for e in unused]

    async def _leave(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,))
        if self._client is not None:
            await self._client.close()

    def _look_soon(self) -> None:
        self._again = True
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="person")

    async def _look(self) -> None:
        if self._client is None:
            self._client = HelmrClient(self._url(), self._api_key)
        while self._again:
            self._again = False
            cursor: str | None = None
            while True:
                page = await self._client.questions.list(cursor=cursor)
                for question in page.items:
                    if question.id not in self._handled:
                        self._handled.add(question.id)
                        self.asked.append(question)
                        if not self._away:
                            await self._answer(self._client, question)
                cursor = page.next_cursor
                if cursor is None:
                    break

    async def _answer(self, client: HelmrClient, question: QuestionState) -> None:
        session = await client.sessions.get(question.session_id)
        found = next((e for e in self._expected if e.fits(session.agent, session.id, question)), None)
        asked = f"{session.agent} (Session {session.id}) asked: {prompt_of(question)!r}"
        if found is None:
            self._problems.append(f"{asked}. Nobody expected that: runtime.person.answers(...) or .chooses(...) it, or .is_away().")
            await client.sessions.ref(session.id).cancel()
            return
        found.given += 1
        try:
            await client.questions.respond(question.id, found.answer(_question(question)))
        except HelmrError as error:
            self._problems.append(f"{asked}. The person's answer, {found}, was refused: {error}")
            if session.status == "open":
                await client.sessions.ref(session.id).cancel()


def prompt_of(question: QuestionState) -> str:
    """The text of a question; empty when it has expired."""
    if isinstance(question.question, UnsetType):
        return ""
    prompt = question.question["prompt"]
    return prompt if isinstance(prompt, str) else "".join(part["text"] for part in prompt if part["type"] == "text")


def _choice(question: Question, choices: Sequence[str]) -> Answer:
    options: Sequence[Mapping[str, object]] = question["answer"].get("options", ())
    labels = {str(option["label"]): str(option["id"]) for option in options}
    return choice_answer(question, [labels.get(choice, choice) for choice in choices])


def _question(question: QuestionState) -> Question:
    if isinstance(question.question, UnsetType):
        raise QuestionNotFound("The question has expired.")
    return question.question


def _name(whom: object) -> str | None:
    if whom is None or isinstance(whom, str):
        return whom
    if isinstance(whom, AgentDefinition) or hasattr(whom, "id"):
        return str(whom.id)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    raise TypeError(f"{whom!r} is no Agent and no Session.")
