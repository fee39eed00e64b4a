"""Requests made from the API's document, against the application: collected by `test_api_document.py` alone, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import schemathesis
from tests.effort import examples
from tests.unit.api.api_fakes import KEY, WORKER_KEY, World
from tests.unit.api.signin_fakes import CLI_TOKEN

from helmr.control.api import build_app

_WORLD = World()
_WORLD.settled.set()
_WORLD.blob_path = Path(__file__)
_SCHEMA = schemathesis.openapi.from_asgi("/v1/openapi.json", build_app(_WORLD))


@_SCHEMA.parametrize()
@examples(3, soak=200)
def test_no_request_made_from_the_document_finds_a_fault(case: schemathesis.Case) -> None:
    token = {"Workers": WORKER_KEY, "Signing in": CLI_TOKEN}.get(next(iter(case.operation.tags or ())), KEY)
    response = case.call(headers={"Authorization": f"Bearer {token}"})
    checks = schemathesis.checks
    case.validate_response(
        response,
        checks=[
            checks.not_a_server_error,
            checks.status_code_conformance,
            checks.content_type_conformance,
            checks.response_schema_conformance,
        ],
    )
