"""Importing agent files. SPEC [D2]."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helmr.sdk.loading import load_module, module_name


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    before, path = set(sys.modules), list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(root: Path, file: str, text: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("agents/reviewer.py", "agents.reviewer"),
        ("main.py", "main"),
        ("agents/__init__.py", "agents"),
        ("agents/my-agent.py", None),
        ("agents/class.py", None),
        ("a.b/c.py", None),
    ],
)
def test_a_file_is_a_dotted_module_where_its_path_allows(file: str, name: str | None) -> None:
    assert module_name(file) == name


def test_agent_files_import_each_other_as_the_same_module(project: Path) -> None:
    write(project, "crew_a/one.py", "value = object()\n")
    write(project, "crew_a/two.py", "from crew_a.one import value\n")
    two = load_module(project, "crew_a/two.py")
    assert load_module(project, "crew_a/one.py").value is two.value


def test_a_file_whose_path_is_no_module_path_is_loaded_once(project: Path) -> None:
    write(project, "crew-b/my-agent.py", "value = object()\n")
    assert load_module(project, "crew-b/my-agent.py") is load_module(project, "crew-b/my-agent.py")


def test_an_installed_package_of_the_same_name_does_not_shadow_the_projects_folder(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    installed = tmp_path_factory.mktemp("site")
    write(installed, "crew_c/__init__.py", "where = 'installed'\n")
    write(project, "crew_c/reviewer.py", "import crew_c\nwhere = crew_c.where\nvalue = 1\n")
    sys.path.insert(0, str(installed))
    module = load_module(project, "crew_c/reviewer.py")
    assert (module.value, module.where) == (1, "installed")


def test_a_file_that_fails_to_import_leaves_nothing_behind(project: Path) -> None:
    write(project, "crew-d/bad.py", "raise LookupError('no')\n")
    for _ in range(2):
        with pytest.raises(LookupError):
            load_module(project, "crew-d/bad.py")
