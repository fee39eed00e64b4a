"""The API's description: valid, complete, what the server really answers, and the page that is made from it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from tests.unit.api.api_asking import ROUTES, SAMPLES, Sample, ask, path_of

from helmr.control.api.openapi import document
from helmr.control.api.reference import page
from helmr.control.api.route import Route, possible_errors
from helmr.protocol import errors

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "http-api.md"
DOCUMENT = document()
routes = pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES.keys())


async def test_the_document_is_valid_openapi() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert [str(error) for error in OpenAPIV31SpecValidator(DOCUMENT).iter_errors()] == []


async def test_the_document_is_served_to_anyone(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/openapi.json", headers={"Authorization": ""})
    assert response.json() == DOCUMENT


async def test_the_document_names_no_rules_of_ours() -> None:
    import json

    assert re.findall(r"\[[A-Z]\d+\]", json.dumps(DOCUMENT)) == []


@routes
async def test_each_route_is_described_with_every_code_that_it_answers(route: Route) -> None:
    described = DOCUMENT["paths"][route.path][route.method.lower()]
    assert described["operationId"] == route.name
    told: set[tuple[int, str]] = set()
    for status, response in described["responses"].items():
        if "application/problem+json" in response["content"]:
            _, refined = response["content"]["application/problem+json"]["schema"]["allOf"]
            told |= {(int(status), code) for code in refined["properties"]["code"]["enum"]}
    expected = {(422 if issubclass(kind, errors.PublishError) else kind.status, kind.code) for kind in possible_errors(route)}
    assert told == expected
    assert {parameter["name"] for parameter in described.get("parameters", ()) if parameter["in"] == "path"} == set(route.parameters)
    assert any(parameter["name"] == "Idempotency-Key" for parameter in described.get("parameters", ())) == route.write


def checked(value: Any, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(value)


@routes
async def test_a_reply_fits_its_schema(client: httpx.AsyncClient, route: Route) -> None:
    response = await ask(client, route)
    described = DOCUMENT["paths"][route.path][route.method.lower()]["responses"][str(response.status_code)]
    if route.gives == "json":
        checked(response.json(), described["content"]["application/json"]["schema"])


@routes
async def test_an_accepted_body_fits_its_schema(route: Route) -> None:
    described = DOCUMENT["paths"][route.path][route.method.lower()]
    if route.body is not None:
        schema = described["requestBody"]["content"]["application/json"]["schema"]
        checked(SAMPLES.get(route.name, Sample(json={})).json, schema)
        with pytest.raises(jsonschema.ValidationError):
            checked({"surprise": 1}, schema)


async def test_a_problem_fits_its_schema(client: httpx.AsyncClient) -> None:
    response = await client.get(path_of(ROUTES["get_session"], session_id="x"))
    checked(response.json(), {"$ref": "#/components/schemas/Problem"})


async def test_the_reference_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run: python -m helmr.control.api.reference > docs/reference/http-api.md"


async def test_the_reference_page_links_only_to_what_it_has() -> None:
    text = page()
    headings = {heading.lower() for heading in re.findall(r"^#+ (\w+)$", text, re.MULTILINE)}
    assert set(re.findall(r"\]\(#(\w+)\)", text)) <= headings


@pytest.mark.timeout(300)
def test_no_request_made_from_the_document_finds_a_fault() -> None:
    """Whatever comes is answered with a status and a form that the document tells; nothing is a 500.

    In a pytest of its own: the requests are made when they are collected, which takes seconds, and each process collects all other tests.
    """
    cases = str(Path(__file__).with_name("document_cases.py"))
    options = ["-o", "addopts=--import-mode=importlib", "-p", "no:xdist", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *options, cases]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environ, cwd=PAGE.parents[2])
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr
    (passed,) = re.findall(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert int(passed) == len(ROUTES) - 1, "each operation was tried, but the one that gives the document"
