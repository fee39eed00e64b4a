"""The pages `docs/reference/errors.md` and `docs/reference/events.md`, made from what is declared in this package.

Write them anew with `python -m helmr.protocol.reference errors > docs/reference/errors.md`, and the same with `events`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from helmr.protocol.errors import AuthoringError, ClientError, PublishError, Refused, SetupError, by_code
from helmr.protocol.timeline import TIMELINE, Said

_RULE: Final = re.compile(r" \[[A-Z]\d+\]")
"""A rule that a docstring cites for whoever reads the code."""

_NOTE: Final = "<!-- Made from `{source}` by `python -m helmr.protocol.reference {page}`; change that, not this page. -->"

_ERRORS_HEAD: Final = f"""# Errors

{_NOTE.format(source="helmr.protocol.errors", page="errors")}

Every refusal has a stable `code`. Decide by the code; texts may change. Over HTTP it is a problem document (`application/problem+json`)
with `code`, `detail`, `hint`, `retryable` and `request_id`; the client raises the class of that code; the command line prints it on
standard error. *Retry* means: the same request, with the same idempotency key, may succeed later without a change; what was accepted is
not lost.

A Turn that did not complete has an `error` of its own, whose codes are below.
"""

_GROUPS: Final = (
    (Refused, "Refused by the server", "What a request can be answered with.", True),
    (AuthoringError, "In Agent code", "Raised by the SDK inside of a handler, which may catch them.", False),
    (PublishError, "Publishing", "Why a project can't be deployed; also as `error.code` of a failed Deployment.", False),
    (SetupError, "This machine", "Raised by `helmr dev`, `helmr serve` and `helmr worker` at their start.", False),
    (ClientError, "In the client", "Raised without an answer of the server.", False),
)

TURN_CODES: Final[Mapping[str, str]] = {
    "handler_failed": "failed: the handler raised.",
    "message_handler_failed": "failed: the message handler raised something else than `MessageRejected`.",
    "input_invalid": "failed: the input schema refused the input; the handler was not called.",
    "result_invalid": "failed: the result is no finite JSON, or the result schema refused it.",
    "result_too_large": "failed: the result is over 256 KiB.",
    "unjoined_operations": "failed: the handler returned while something that it started was not awaited.",
    "deadline_exceeded": "failed: `max_turn_duration` was over.",
    "process_lost": "interrupted: the Session's process ended under it.",
    "out_of_memory": "interrupted: the process was ended for its memory; `details` has `limit` and `peak`.",
    "history_lost": "interrupted: the database was restored from a copy that does not know how the Turn ended; it is not run again.",
    "worker_lost": "interrupted: the Computer's host did not answer for its lease and half a minute more.",
}
"""What `TurnState.error.code` may be."""

_EVENTS_HEAD: Final = f"""# Events

{_NOTE.format(source="helmr.protocol.timeline", page="events")}

Each Session has one timeline. A record is `session_id`, `turn_id` (null when it is about no Turn), `sequence`, `created_at`, `kind` and
`data`. It is written by the transaction that makes it true, so what the timeline says has happened, and what has happened is there.

- Sequences count from 1 without a gap, in the order of the commits. Who reads from a sequence on misses nothing and gets nothing twice.
- Everything of a Turn (its output, the ends of its messages and questions) comes before its terminal event, of which there is exactly one.
- After `session.closed` only the end of the process (and Slack's bookkeeping) may follow. Then the timeline is *sealed*.
- Data may gain members and new kinds may come: ignore what you don't know.

`GET /v1/sessions/{{id}}/events?after=&limit=` reads pages of up to 1,000 records or 4 MiB. `retained_after` is the sequence up to which
records were deleted (0: none); a cursor below it is refused `cursor_expired`, one beyond the end `invalid_cursor`.
`GET .../events/stream` follows as server-sent events, `session.events.stream()` in the client, `helmr session events --follow` on the
command line; each goes on where it was after a broken connection. See [the HTTP API](http-api.md#event-streams).

A record's `data` is an object with these members, but for `turn.output`.
"""


def errors_page() -> str:
    """The whole page of errors."""
    return "\n".join(_errors()) + "\n"


def events_page() -> str:
    """The whole page of events."""
    return "\n".join(_events()) + "\n"


PAGES: Final[Mapping[str, Callable[[], str]]] = {"errors": errors_page, "events": events_page}


def _errors() -> Iterator[str]:
    yield _ERRORS_HEAD
    declared = by_code().values()
    for base, title, about, answered in _GROUPS:
        yield from (f"## {title}", "", about, "")
        yield "| code | class | status | retry | meaning |" if answered else "| code | class | meaning |"
        yield "|---|---|---|---|---|" if answered else "|---|---|---|"
        kinds = [kind for kind in declared if issubclass(kind, base)]
        for kind in sorted(kinds, key=lambda kind: (kind.status if answered else 0, kind.code)):
            meaning = _RULE.sub("", " ".join(filter(None, (kind.default_detail(), kind.hint))))
            about_it = f"{kind.status} | {'yes' if kind.retryable else 'no'} | " if answered else ""
            yield f"| `{kind.code}` | `{kind.__name__}` | {about_it}{meaning} |"
        yield ""
    yield from ("## Errors of Turns", "", "`error.code` of a Turn that failed or was interrupted.", "", "| code | the Turn |", "|---|---|")
    for code, meaning in TURN_CODES.items():
        yield f"| `{code}` | {meaning} |"


def _events() -> Iterator[str]:
    yield _EVENTS_HEAD
    group = ""
    for kind, said in TIMELINE.items():
        about = kind.partition(".")[0]
        if about != group:
            group = about
            yield from (f"## {about.capitalize()}", "", "| kind | when | data |", "|---|---|---|")
        yield f"| `{kind}` | {said.when} | {_data(said)} |"
        following = list(TIMELINE)[list(TIMELINE).index(kind) + 1 :]
        if not following or following[0].partition(".")[0] != group:
            yield ""


def _data(said: Said) -> str:
    if said.reserved:
        return "not written yet"
    if said.content:
        return "a Content list: text and JSON parts"
    members = [f"`{name}`: {meaning}" for name, meaning in said.always.items()]
    members += [f"`{name}` (not always): {meaning}" for name, meaning in said.sometimes.items()]
    return "; ".join(members) or "none"


if __name__ == "__main__":
    sys.stdout.write(PAGES[sys.argv[1]]())
