"""The examples of `docs/reference/client.md` are Python, and name what there is."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import helmr.client

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "client.md").read_text(encoding="utf-8")


def test_the_examples_compile_and_their_imports_exist() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) >= 3
    for example in examples:
        compile(example, "client.md", "exec")
        for module, names in re.findall(r"^from (\S+) import (.+)$", example, re.MULTILINE):
            for name in names.split(", "):
                assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def test_every_public_method_is_on_the_page() -> None:
    for name in ("Sessions", "SessionRef", "TurnRef", "TurnAsks", "Questions", "Agents", "Deployments"):
        for method, member in vars(getattr(helmr.client, name)).items():
            if inspect.isfunction(member) and not method.startswith("_"):
                assert f"{method}(" in PAGE, f"{name}.{method}"
