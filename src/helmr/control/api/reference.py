"""The page `docs/reference/http-api.md`, made from the route table.

Write it anew with `python -m helmr.control.api.reference > docs/reference/http-api.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Any, cast

from helmr.control.api.openapi import document
from helmr.control.api.problems import status_of
from helmr.control.api.requests import Nothing
from helmr.control.api.route import Route
from helmr.control.api.table import WORKER_LINK_PATH, declared_routes
from helmr.protocol.errors import PublishError, Refused, by_code

_HEAD = f"""# HTTP API

<!-- Made from the route table by `python -m helmr.control.api.reference`; change the table, not this page. -->

All routes of `/v1` take and give JSON. The same description for machines is at `/v1/openapi.json` (OpenAPI 3.1).

- **Credential**: `Authorization: Bearer hlmr_sk_...`. The key implies its Environment, and each route names the permission that it needs.
  A [person](sign-in.md) sends the token of `helmr login` (`hlmr_ut_...`) or a browser's cookie, and names the Environment with
  `Helmr-Environment: project/environment`.
- **Unknown fields** of a body and unknown query parameters are refused, by name. Replies may gain members; ignore those that you don't
  know.
- **Absent and null differ**: leave a member out, or give it a value.
- **Retries**: a write takes the header `Idempotency-Key` (1 to 512 printable ASCII characters). A repeat with the same key and content has
  no second effect and gets the first reply, with `Idempotency-Replayed: true`; the same key with other content is refused
  `idempotency_conflict`.
- **Pages**: `{{"items": [...], "next_cursor": ...}}`; ask again with `cursor` until `next_cursor` is null. `limit` is 1 to 100, 50 by
  default.
- **Errors** are `application/problem+json` (RFC 9457) with `code`, `detail`, `hint`, `retryable` and `request_id`, and facts of the error
  as further members. Decide by `code`. An id of another Environment is answered like an unknown one.
- **429 and 503** carry `Retry-After` in seconds.
- **Request ids**: each reply has `X-Request-Id`, which the server's log names too.
- **Waiting**: `GET .../turns/{{turn_id}}?wait=30s` answers when the Turn has settled, or with its state after the wait (at most 60 s).
- **Slow readers**: a reply of which nothing is taken for 30 seconds is cut. When all replies that wait for their readers are over 256 MiB
  together, those that have waited longest are cut. A pipelined request is begun when the replies before it were taken.
- `HEAD` works wherever `GET` does, but for event streams and files of Computers.

## Event streams

`GET /v1/sessions/{{session_id}}/events/stream` is `text/event-stream`. Each stored event has its sequence as `id` and its JSON as `data`;
nothing else has an `id`. Comments come when nothing else did for 15 seconds. `event: end` is the last one: the Session is closed and
nothing more can come. A stream that ends without it is to be opened again with `Last-Event-ID` (or `after`), and goes on exactly there. A
reader that takes nothing for 30 seconds is dropped, and catches up in the same way.

## Worker link

`{WORKER_LINK_PATH}` is a WebSocket for workers, opened with a worker's credential as bearer token; its messages are described in
`docs/architecture.md`.
"""


def page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    described = document()
    for tag, routes in groupby(sorted(declared_routes(), key=_tag_order), key=lambda route: route.tag):
        yield from (f"## {tag}", "")
        for route in routes:
            yield from _operation(route, described["paths"][route.path][route.method.lower()])
    yield from _shapes(described["components"]["schemas"])
    yield from _errors()


def _tag_order(route: Route) -> int:
    tags = list(dict.fromkeys(known.tag for known in declared_routes()))
    return tags.index(route.tag)


def _operation(route: Route, described: dict[str, Any]) -> Iterator[str]:
    yield from (f"### `{route.method} {route.path}`", "", f"{route.summary}. {_need(route)}", "")
    for parameter in described.get("parameters", ()):
        if parameter["in"] != "path" and parameter["name"] != "Idempotency-Key":
            yield f"- {parameter['in']} `{parameter['name']}`: {_parameter(parameter)}"
    if route.body is Nothing:
        yield "- body: none, or `{}`"
    elif "requestBody" in described:
        (kind, content), *_ = described["requestBody"]["content"].items()
        yield f"- body: {_type(content['schema']) if 'schema' in content else f'`{kind}`'}"
    if route.write:
        yield "- takes `Idempotency-Key`"
    success = described["responses"][str(route.status)]
    (kind, content), *_ = success["content"].items()
    gives = success["description"] if route.gives == "events" else _type(content["schema"]) if route.gives == "json" else f"`{kind}`"
    yield f"- gives {route.status}: {gives}"
    codes = [f"`{kind.code}`" for kind in route.errors]
    if codes:
        yield f"- may refuse with {', '.join(dict.fromkeys(codes))}"
    yield ""


def _need(route: Route) -> str:
    if route.access == "public":
        return "Needs no credential."
    if route.access == "worker":
        return "Needs a worker's credential."
    return f"Needs `{route.permission}`." if route.permission else "Needs a credential."


def _parameter(parameter: dict[str, Any]) -> str:
    schema = parameter["schema"]
    parts = [_type(schema)]
    if "minimum" in schema:
        parts.append(f"{schema['minimum']} to {schema['maximum']}")
    if "default" in schema:
        parts.append(f"{schema['default']} by default")
    if parameter.get("required"):
        parts.append("required")
    text = ", ".join(parts)
    description = parameter.get("description") or schema.get("description", "")
    return f"{text}. {description}" if description else text


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind: Any = schema.get("type", "any JSON")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    text = " or ".join(cast("list[str]", kind)) if isinstance(kind, list) else str(kind)
    return {"uuid": text.replace("string", "id"), "date-time": text.replace("string", "time")}.get(schema.get("format", ""), text)


def _shapes(schemas: dict[str, Any]) -> Iterator[str]:
    yield from ("## Shapes", "", "Times are RFC 3339 in UTC with microseconds. Ids are lower-case UUIDs.", "")
    for name, schema in schemas.items():
        yield from (f"### {name}", "")
        if text := schema.get("description"):
            yield from (text, "")
        required = set(schema.get("required", ()))
        for member, inner in schema.get("properties", {}).items():
            note = f". {inner['description']}" if "description" in inner else ""
            yield f"- `{member}`{'' if member in required else ' (optional)'}: {_type(inner)}{note}"
        if not schema.get("properties"):
            yield "Without members."
        yield ""


def _errors() -> Iterator[str]:
    yield from ("## Error codes", "", "| code | status | retry | meaning |", "|---|---|---|---|")
    answered = [kind for kind in by_code().values() if issubclass(kind, (Refused, PublishError))]
    for kind in sorted(answered, key=lambda kind: (status_of(kind()), kind.code)):
        meaning = " ".join(filter(None, (kind.default_detail(), kind.hint)))
        yield f"| `{kind.code}` | {status_of(kind())} | {'yes' if kind.retryable else 'no'} | {meaning} |"


if __name__ == "__main__":
    sys.stdout.write(page())
