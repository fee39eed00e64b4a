"""OpenAPI 3.1 of the API, made from the route table."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, cast, get_origin, get_type_hints

from helmr.control.api.problems import status_of
from helmr.control.api.requests import Nothing
from helmr.control.api.route import PATH_PARAMETERS, Route, possible_errors
from helmr.control.api.schema import Schema, Schemas
from helmr.control.api.table import declared_routes
from helmr.protocol.errors import HelmrError

_RULE = re.compile(r"\s*\[(?:[A-Z]\d+)\](?:-\[[A-Z]\d+\])?")
"""Names of rules, which readers of this document can't look up."""

_SECURITY: dict[str, list[dict[str, list[str]]]] = {
    "key": [{"api_key": []}, {"person": []}, {"browser": []}],
    "person": [{"person": []}, {"browser": []}],
    "worker": [{"worker_credential": []}],
    "public": [],
}


def document(routes: Iterable[Route] | None = None) -> dict[str, Any]:
    """The document for `routes`; by default for the whole table."""
    schemas = Schemas()
    schemas.components["Problem"] = PROBLEM_SCHEMA
    paths: dict[str, dict[str, Any]] = {}
    for route in declared_routes() if routes is None else routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return _without_rules(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Helmr",
                "version": version("helmr"),
                "description": "A self-hosted runtime for coding agents. Replies may gain members; readers ignore those that they don't "
                "know. Requests with unknown members are refused.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "paths": paths,
            "components": {
                "schemas": dict(sorted(schemas.components.items())),
                "securitySchemes": {
                    "api_key": {"type": "http", "scheme": "bearer", "description": "An API key (hlmr_sk_...); it implies its Environment."},
                    "person": {
                        "type": "http",
                        "scheme": "bearer",
                        "description": "The token of `helmr login` (hlmr_ut_...); the header Helmr-Environment names project/environment.",
                    },
                    "browser": {
                        "type": "apiKey",
                        "in": "cookie",
                        "name": "__Host-helmr_session",
                        "description": "A browser that is signed in; the header Helmr-Environment names project/environment.",
                    },
                    "worker_credential": {"type": "http", "scheme": "bearer", "description": "What a worker was enrolled with."},
                },
            },
        }
    )


def _operation(route: Route, schemas: Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.tag],
        "security": _SECURITY[route.access],
        "responses": {str(route.status): _success(route, schemas), **_problems(route)},
    }
    if route.permission is not None:
        found["description"] = f"Needs the permission `{route.permission}`."
    if parameters := [*_path_parameters(route), *_query_parameters(route, schemas), *_headers(route)]:
        found["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": schemas.of(route.body, closed=True)}}
        found["requestBody"] = {"required": route.body is not Nothing, "content": content}
    elif route.takes == "bytes":
        found["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    elif route.takes == "form":
        found["requestBody"] = {"required": True, "content": {"application/x-www-form-urlencoded": {}}}
    return found


def _success(route: Route, schemas: Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {
        "description": HTTPStatus(route.status).phrase,
        "headers": {"X-Request-Id": _text_header("Names this request in logs.")},
    }
    if route.write:
        found["headers"]["Idempotency-Replayed"] = _text_header('"true" when an earlier request with this key made the reply.')
    if route.gives == "json":
        found["content"] = {"application/json": {"schema": schemas.of(route.answer)}}
    elif route.gives == "events":
        schema = schemas.of(route.answer)
        data = f"JSON as in {schema['$ref']}" if "$ref" in schema else "text"
        found["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
        found["description"] = f"Server-sent events; the data of each is {data}. The last one is named `end`."
    elif route.gives == "page":
        found["content"] = {"text/html": {}}
    else:
        found["content"] = {"application/octet-stream" if route.gives in ("bytes", "pieces") else "text/plain": {}}
    return found


def _problems(route: Route) -> dict[str, Any]:
    by_status: dict[int, list[type[HelmrError]]] = {}
    for kind in possible_errors(route):
        by_status.setdefault(status_of(kind()), []).append(kind)
    found = {str(status): _problem_response(status, kinds) for status, kinds in sorted(by_status.items())}
    if route.gives == "page":
        for response in found.values():
            response["content"]["text/html"] = {}
    return found


def _problem_response(status: int, kinds: list[type[HelmrError]]) -> dict[str, Any]:
    codes = [kind.code for kind in kinds]
    refined: Schema = {"allOf": [{"$ref": "#/components/schemas/Problem"}, {"properties": {"code": {"enum": codes}}}]}
    found: dict[str, Any] = {
        "description": " ".join(f"`{kind.code}`: {kind.default_detail()}" for kind in kinds),
        "content": {"application/problem+json": {"schema": refined}},
    }
    if status in (429, 503):
        found["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}
    return found


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "description": (known := PATH_PARAMETERS[name]).description, "schema": known.schema}
        for name in route.parameters
    ]


def _query_parameters(route: Route, schemas: Schemas) -> list[dict[str, Any]]:
    hints = get_type_hints(route.query, include_extras=True)
    found: list[dict[str, Any]] = []
    for item in dataclasses.fields(route.query):
        schema = schemas.of(hints[item.name], closed=True)
        if isinstance(item.default, int):
            schema = {**schema, "default": item.default}
        parameter: dict[str, Any] = {"name": item.name, "in": "query", "schema": schema}
        if item.default is dataclasses.MISSING:
            parameter["required"] = True
        if get_origin(hints[item.name]) is tuple:
            parameter |= {"style": "form", "explode": True, "description": "May stand several times."}
        found.append(parameter)
    return found


def _headers(route: Route) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if route.write:
        schema: Schema = {"type": "string", "minLength": 1, "maxLength": 512, "pattern": "^[ -~]+$"}
        text = "Names this request: a repeat with the same key and content has no second effect and gets the first reply."
        found.append({"name": "Idempotency-Key", "in": "header", "description": text, "schema": schema})
    if route.name == "stream_events":
        text = "The sequence of the last event that was seen; goes before `after`."
        found.append(
            {"name": "Last-Event-ID", "in": "header", "description": text, "schema": {"type": "string", "pattern": "^[0-9]{1,16}$"}}
        )
    return found


def _text_header(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}


def _without_rules(value: Any) -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: _reworded(name, member) for name, member in members.items()}
    return [_without_rules(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def _reworded(name: str, member: Any) -> Any:
    return _RULE.sub("", member) if name in ("description", "summary") and isinstance(member, str) else _without_rules(member)


PROBLEM_SCHEMA: Schema = {
    "type": "object",
    "description": "A refusal (RFC 9457). Further members are facts of this error, such as `session_id`.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "Stable; decide by this."},
        "detail": {"type": "string", "description": "For people."},
        "hint": {"type": "string", "description": "What to do; may be empty."},
        "retryable": {"type": "boolean", "description": "Whether the same request may succeed later."},
        "request_id": {"type": "string", "format": "uuid"},
    },
    "required": ["type", "title", "status", "code", "detail", "hint", "retryable", "request_id"],
}
