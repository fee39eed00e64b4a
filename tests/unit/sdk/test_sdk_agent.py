"""`agent()`, `template()` and the public surface. SPEC [A1], section 2."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import helmr
from helmr import AgentContext, Turn, agent, cron, image, secret, template, text
from helmr.protocol.errors import McpPolicyError
from helmr.sdk.agent import AgentDefinition

computer = template(id="repo", image=image("repo").from_host())


async def handle(turn: Turn, ctx: AgentContext) -> None: ...


EXAMPLE = """
from helmr import AgentContext, InitContext, Turn, agent, image, template

repo_computer = template(
    id="repo",
    image=image("repo").from_("python:3.12-slim"),
    resources={"cpu": 1, "memory": "1GiB"},
)

@agent(id="reviewer", template=repo_computer)
async def reviewer(turn: Turn, ctx: AgentContext) -> dict[str, bool]:
    await turn.output.write("Review started\\n")
    await turn.respond("Review complete")
    return {"reviewed": True}
"""


def test_the_example_of_the_contract_works_as_it_is_written() -> None:
    """SPEC section 2, word by word."""
    made: dict[str, Any] = {"__name__": "example"}
    exec(compile(EXAMPLE, "example.py", "exec"), made)
    reviewer, repo_computer = made["reviewer"], made["repo_computer"]
    assert (reviewer.kind, reviewer.id, reviewer.template) == ("agent", "reviewer", repo_computer)
    assert reviewer.input_schema is None and reviewer.init is None and reviewer.runtime_mcp is None
    assert reviewer.close_after_idle_ms == 7 * 86_400_000
    assert reviewer.hibernate_after_idle_ms is None and reviewer.max_turn_duration_ms is None
    assert reviewer.is_async
    assert (repo_computer.cpu, repo_computer.memory) == (1.0, 1 << 30)


def test_a_definition_is_frozen_and_knows_where_it_was_defined() -> None:
    @agent(id="a", template=computer)
    async def first(turn: Turn, ctx: AgentContext) -> None: ...

    with pytest.raises(FrozenInstanceError):
        first.id = "b"  # type: ignore[misc]
    second = agent(id="b", template=computer, turn=handle)
    assert first.defined.file == second.defined.file == __file__
    assert 0 < first.defined.line < second.defined.line


@pytest.mark.parametrize(
    "arguments",
    [
        {"id": "", "template": computer},
        {"id": " \t", "template": computer},
        {"id": None, "template": computer},
        {"id": "a", "template": "repo"},
        {"id": "a", "template": None},
        {"id": "a", "template": computer, "turn": 3},
        {"id": "a", "template": computer, "turn": handle, "init": "later"},
        {"id": "a", "template": computer, "turn": handle, "block_all": True},
        {"id": "a", "template": computer, "turn": handle, "input_schema": "Issue"},
        {"id": "a", "template": computer, "turn": handle, "triggers": ["0 9 * * *"]},
        {"id": "a", "template": computer, "turn": handle, "preload": "json"},
    ],
)
def test_a_definition_of_the_wrong_shape_is_a_type_error(arguments: dict[str, Any]) -> None:
    """[A1]: a blank id, a template that is none, a turn that can't be called."""
    with pytest.raises(TypeError):
        agent(**arguments)


def test_a_decorated_value_that_cannot_be_called_is_a_type_error() -> None:
    decorate: Any = agent(id="a", template=computer)
    with pytest.raises(TypeError, match="can't be called"):
        decorate(3)


@pytest.mark.parametrize("id", ["-a", "a b", "ä", "a" * 129, "a/b", ".a"])
def test_an_id_outside_the_grammar_is_refused(id: str) -> None:
    with pytest.raises(ValueError, match="malformed"):
        agent(id=id, template=computer, turn=handle)


@pytest.mark.parametrize("options", [{"close_after_idle": "7 days"}, {"hibernate_after_idle": "0s"}, {"max_turn_duration": "never"}])
def test_a_period_names_its_field_when_it_is_wrong(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} of the agent 'a'"):
        agent(id="a", template=computer, turn=handle, **options)


def test_periods_are_texts_or_timedeltas() -> None:
    made = agent(
        id="a", template=computer, turn=handle, close_after_idle="never", hibernate_after_idle="15m", max_turn_duration=timedelta(hours=2)
    )
    assert (made.close_after_idle_ms, made.hibernate_after_idle_ms, made.max_turn_duration_ms) == (None, 900_000, 7_200_000)


def test_an_authored_policy_is_normalized_and_a_bad_one_refused_where_it_is_written() -> None:
    """[M1]"""
    made = agent(id="a", template=computer, turn=handle, runtime_mcp={"allow": [{"operation": "spawn", "agents": ["b", "a"]}]})
    assert made.runtime_mcp == {"allow": [{"operation": "spawn", "agents": ["a", "b"], "computer": "new"}]}
    wrong: Any = {"allow": [{"operation": "wait_turn", "agents": ["b"]}]}
    with pytest.raises(McpPolicyError, match=r"allow\[0\].*inspect_turn"):
        agent(id="a", template=computer, turn=handle, runtime_mcp=wrong)


def test_two_triggers_of_one_agent_have_different_ids() -> None:
    daily = cron("daily", "0 9 * * 1-5", timezone="Europe/Berlin", input=[text("go")])
    with pytest.raises(ValueError, match="two triggers called 'daily'"):
        agent(id="a", template=computer, turn=handle, triggers=[daily, daily])


def test_a_plain_function_is_a_handler_for_a_thread() -> None:
    """[A1]"""

    class Handler:
        async def __call__(self, turn: Turn, ctx: AgentContext) -> None: ...

    assert not agent(id="a", template=computer, turn=lambda turn, ctx: None).is_async
    assert agent(id="a", template=computer, turn=Handler()).is_async


@pytest.mark.parametrize(
    ("given", "size"), [("512MiB", 512 << 20), ("1GiB", 1 << 30), ("2TiB", 2 << 40), (1 << 30, 1 << 30), ("65536KiB", 64 << 20)]
)
def test_memory_is_bytes_or_a_text_with_a_binary_unit(given: int | str, size: int) -> None:
    assert template(id="t", image=computer.image, resources={"memory": given}).memory == size


@pytest.mark.parametrize(
    "resources",
    [
        {"memory": "1GB"},
        {"memory": "1 GiB"},
        {"memory": "0GiB"},
        {"memory": 1},
        {"memory": True},
        {"memory": None},
        {"cpu": 0},
        {"cpu": "1"},
        {"cpu": True},
        {"cpu": float("nan")},
        {"pids": 2},
        {"pids": 1.5},
        {"disk": "1GiB"},
    ],
)
def test_resources_outside_what_is_allowed_are_refused(resources: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(resources))):
        template(id="t", image=computer.image, resources=resources)


def test_a_template_needs_an_id_and_an_image_with_a_base() -> None:
    for arguments in ({"id": "", "image": computer.image}, {"id": "t", "image": "python:3.12"}):
        with pytest.raises(TypeError):
            template(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no base"):
        template(id="t", image=image("t"))
    with pytest.raises(TypeError, match="egress"):
        template(id="t", image=computer.image, egress="example.com")


def test_a_template_binds_each_name_once_and_knows_where_it_may_connect() -> None:
    """[X1], [C4]"""
    token = secret("GITHUB_TOKEN", protected=True, allowed_origins=["https://api.example.com:443"])
    made = template(id="t", image=computer.image, secrets=[token], egress=["Example.com", "*.example.org:8443", "example.com"])
    assert made.egress == ("example.com", "*.example.org:8443")
    assert made.secrets[0].allowed_origins == ("https://api.example.com",)
    assert made.secrets[0].headers == ("Authorization", "X-Api-Key", "Private-Token")
    with pytest.raises(ValueError, match="binds GITHUB_TOKEN twice"):
        template(id="t", image=computer.image, secrets=[token, secret("other", env="GITHUB_TOKEN")])


@pytest.mark.parametrize(
    "rule", ["", "http://example.com", "example.com/path", "exa mple.com", "*", "*.*.com", "example.com:0", "example.com:99999", "-a.com"]
)
def test_an_egress_rule_that_is_no_host_is_refused(rule: str) -> None:
    with pytest.raises(ValueError):
        template(id="t", image=computer.image, egress=[rule])


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "HELMR_TOKEN"},
        {"name": "x", "env": "LD_PRELOAD"},
        {"name": "x", "env": "PYTHONPATH"},
        {"name": "x", "env": "SSL_CERT_FILE"},
        {"name": "x", "env": "A=B"},
        {"name": "x", "env": "A", "file": "/run/a"},
        {"name": "x", "file": "relative"},
        {"name": "x", "file": "/run/../etc/passwd"},
        {"name": "bad name"},
        {"name": "A", "protected": True},
        {"name": "A", "protected": True, "allowed_origins": ["http://example.com"]},
        {"name": "A", "protected": True, "allowed_origins": ["https://example.com/path"]},
        {"name": "A", "protected": True, "allowed_origins": ["https://*.example.com"]},
        {"name": "A", "protected": True, "allowed_origins": [f"https://h{n}.example.com" for n in range(17)]},
        {"name": "A", "allowed_origins": ["https://example.com"]},
        {"name": "A", "protected": True, "allowed_origins": ["https://example.com"], "headers": ["a b"]},
    ],
)
def test_a_secret_binding_that_breaks_a_rule_is_refused(arguments: dict[str, Any]) -> None:
    """[X1], [X2]"""
    with pytest.raises(ValueError):
        secret(**arguments)


def test_the_public_surface_is_pinned() -> None:
    assert helmr.__all__ == sorted(helmr.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert set(helmr.__all__) == {
        *(
            "UNSET",
            "AbortController",
            "AbortSignal",
            "AgentContext",
            "AgentDefinition",
            "AskAnswer",
            "AskCancelled",
            "Content",
            "HelmrClient",
            "HelmrError",
        ),
        *("HumanContent", "Image", "InitContext", "InputContent", "JsonPart", "McpPolicyError", "Message", "MessageRejected"),
        *("OutputReceipt", "Question", "Refused", "RuntimeMcpPolicy", "Schema", "SchemaError", "SyncTurn", "Template", "TextPart", "Turn"),
        *(
            "TurnCancelled",
            "UnsetType",
            "agent",
            "ask_choice",
            "ask_text",
            "cron",
            "image",
            "json_part",
            "plain_schema",
            "schema",
            "secret",
        ),
        *("source", "template", "text"),
    }
    for name in helmr.__all__:
        assert getattr(helmr, name) is not None
    assert set(helmr.__all__) <= set(dir(helmr))
    assert isinstance(agent(id="a", template=computer, turn=handle), AgentDefinition)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = helmr.Nothing  # type: ignore[attr-defined]


def test_authoring_needs_the_standard_library_alone() -> None:
    """[A9]: a guest imports the SDK without any installed package."""
    program = f"""
import sys
sys.path.insert(0, {str(Path(helmr.__file__).parents[1])!r})
import helmr
for name in helmr.__all__:
    if name != "HelmrClient":
        getattr(helmr, name)
known = set(sys.stdlib_module_names) | {{"helmr", "__main__"}}
tops = {{name.partition(".")[0] for name in sys.modules}}
print(sorted(name for name in tops - known if not name.startswith("_sysconfigdata")))
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
