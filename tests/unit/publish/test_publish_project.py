"""Projects and their dependencies. SPEC [D1], [D2]."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helmr.protocol.errors import PublishError
from helmr.publish.dependencies import requirements_of
from helmr.publish.project import load_project


def project(root: Path, text: str) -> Path:
    (root / "agents").mkdir(exist_ok=True)
    (root / "pyproject.toml").write_text(text, encoding="utf-8")
    return root


def test_a_project_has_defaults(tmp_path: Path) -> None:
    made = load_project(project(tmp_path, '[project]\nname = "p"\n'))
    assert (made.name, made.dirs, made.ignore, dict(made.images), made.deps) == ("p", ("agents",), (), {}, True)
    assert load_project(project(tmp_path, "")).name == tmp_path.name


def test_a_project_says_where_its_agents_are_and_how_images_are_named(tmp_path: Path) -> None:
    (tmp_path / "crew").mkdir()
    text = '[tool.helmr]\ndirs = ["agents", "crew/"]\nignore = ["*.md"]\ndeps = false\n[tool.helmr.images]\n"node:24" = "host"\n'
    made = load_project(project(tmp_path, text))
    assert (made.dirs, made.ignore, made.deps, dict(made.images)) == (("agents", "crew"), ("*.md",), False, {"node:24": "host"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = ", "malformed"),
        ("x = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("[tool.helmr]\ndir = ['agents']", "unknown key 'dir'"),
        ("[tool.helmr]\ndirs = 'agents'", "dirs must be a list"),
        ("[tool.helmr]\ndirs = [1]", "dirs must be a list"),
        ("[tool.helmr]\ndirs = ['nowhere']", "no folder 'nowhere'"),
        ("[tool.helmr]\ndirs = ['../elsewhere']", "leaves the project"),
        ("[tool.helmr]\ndeps = 'no'", "deps must be true or false"),
        ("[tool.helmr.images]\n'a:b' = 1", "'a:b' must map"),
        ("[tool]\nhelmr = 3", "must be a table"),
    ],
)
def test_a_project_file_that_is_wrong_says_how(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(PublishError, match=said):
        load_project(project(tmp_path, text))


def test_a_folder_without_a_project_file_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="helmr init"):
        load_project(tmp_path)


def test_dependencies_are_those_of_the_project_without_helmr(tmp_path: Path) -> None:
    text = '[project]\nname = "p"\ndependencies = ["rich>=13", "Helmr[schemas]>=0.1", "helmr", "anyio"]\n'
    assert requirements_of(load_project(project(tmp_path, text))) == ("anyio", "rich>=13")
    assert requirements_of(load_project(project(tmp_path, text + "[tool.helmr]\ndeps = false\n"))) == ()


def test_a_requirements_file_comes_before_the_projects_own_list(tmp_path: Path) -> None:
    root = project(tmp_path, '[project]\nname = "p"\ndependencies = ["anyio"]\n')
    (root / "requirements.txt").write_text(
        "# tools\nrich==13.0 \\\n    --hash=sha256:00 # pinned\n\n-r more.txt\nhelmr\nx @ https://example.invalid/x.whl\n", encoding="utf-8"
    )
    (root / "more.txt").write_text("typer ; python_version > '3.11'\n", encoding="utf-8")
    assert requirements_of(load_project(root)) == ("rich==13.0", "typer ; python_version > '3.11'", "x @ https://example.invalid/x.whl")


@pytest.mark.parametrize(
    "line", ["-e .", "./local", "/abs/x.whl", "--index-url https://example.invalid", "-r missing.txt", "-r requirements.txt"]
)
def test_a_requirement_that_no_image_can_install_names_file_and_line(tmp_path: Path, line: str) -> None:
    root = project(tmp_path, "")
    (root / "requirements.txt").write_text(f"rich\n{line}\n", encoding="utf-8")
    with pytest.raises(PublishError, match=r"requirements\.txt:2"):
        requirements_of(load_project(root))


LOCK = """version = 1
requires-python = ">=3.11"

[[package]]
name = "p"
version = "0.1.0"
source = { virtual = "." }
dependencies = [{ name = "colorama", marker = "sys_platform == 'win32'" }]

[package.metadata]
requires-dist = [{ name = "colorama", marker = "sys_platform == 'win32'" }]

[[package]]
name = "colorama"
version = "0.4.6"
source = { registry = "https://example.invalid/simple" }
sdist = { url = "https://example.invalid/colorama-0.4.6.tar.gz", hash = "sha256:"""
LOCK += f'{"0" * 64}" }}\n'


def test_a_lock_gives_exact_versions(tmp_path: Path) -> None:
    text = '[project]\nname = "p"\nversion = "0.1.0"\nrequires-python = ">=3.11"\ndependencies = ["colorama; sys_platform == \'win32\'"]\n'
    root = project(tmp_path, text)
    (root / "uv.lock").write_text(LOCK, encoding="utf-8")
    (root / "requirements.txt").write_text("never-read\n", encoding="utf-8")
    assert requirements_of(load_project(root)) == ("colorama==0.4.6 ; sys_platform == 'win32'",)


def test_a_lock_that_cannot_be_read_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = project(tmp_path, '[project]\nname = "p"\nversion = "0.1.0"\n')
    (root / "uv.lock").write_text("nonsense", encoding="utf-8")
    with pytest.raises(PublishError, match="uv lock"):
        requirements_of(load_project(root))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PublishError, match="no uv here"):
        requirements_of(load_project(root))


def test_a_pyproject_that_is_a_pipe_is_refused_and_nobody_waits_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pyproject.toml")
    with pytest.raises(PublishError, match=r"pyproject\.toml is neither"):
        load_project(tmp_path)
