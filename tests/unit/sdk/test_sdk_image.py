"""Image recipes. SPEC [A7]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from helmr import Image, image, source
from helmr.sdk.image import Copy, CopyFrom, Env, PipInstall, Run, User, Workdir


def test_each_call_returns_a_new_value() -> None:
    empty = image("tools")
    host = empty.from_host()
    built = host.run(["make"])
    assert (empty.base, host.base, host.steps, len(built.steps)) == (None, "host", (), 1)
    assert host.run(["make"]) == built


def test_a_recipe_holds_its_steps_in_order() -> None:
    other = image("other").from_("debian:12@sha256:" + "0" * 64)
    made = (
        image("all")
        .from_("ghcr.example/python:3.12-slim")
        .env({"A": "1"}, B="2")
        .workdir("/srv")
        .user("app:app")
        .copy("/srv/app", source.directory("app/"))
        .copy("/etc/motd", source.file("./files/motd"))
        .copy_from(other, "/usr/bin/tool", "/usr/local/bin/tool")
        .pip_install("ruff", " pytest>=8 ")
        .network(["*.example.com", "example.com"])
        .run(["sh", "-c", "true"])
        .network(["example.com"])
        .pip_install("mypy")
    )
    assert made.steps == (
        Env(values={"A": "1", "B": "2"}),
        Workdir(path="/srv"),
        User(name="app:app"),
        Copy(dest="/srv/app", source=source.directory("app")),
        Copy(dest="/etc/motd", source=source.file("files/motd")),
        CopyFrom(dest="/usr/local/bin/tool", path="/usr/bin/tool", image=other),
        PipInstall(requirements=("ruff", "pytest>=8")),
        Run(argv=("sh", "-c", "true"), network=("*.example.com", "example.com")),
        PipInstall(requirements=("mypy",), network=("*.example.com", "example.com")),
    )


host = image("h").from_host()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda: image("bad name"), ValueError),
        (lambda: image("x").run(["a"]), ValueError),
        (lambda: host.from_host(), ValueError),
        (lambda: host.from_("a:b"), ValueError),
        (lambda: image("x").from_("UPPER:tag"), ValueError),
        (lambda: image("x").from_("a b"), ValueError),
        (lambda: image("x").from_(""), ValueError),
        (lambda: host.run("make install"), TypeError),
        (lambda: host.run([]), TypeError),
        (lambda: host.run(["a", 1]), TypeError),
        (lambda: host.run(["a\0"]), ValueError),
        (lambda: host.copy("/a", "path"), TypeError),
        (lambda: host.copy("", source.file("a")), ValueError),
        (lambda: host.copy("/a/../b", source.file("a")), ValueError),
        (lambda: source.file("../a"), ValueError),
        (lambda: source.file("/etc/passwd"), ValueError),
        (lambda: source.directory("a/../../b"), ValueError),
        (lambda: source.file(""), ValueError),
        (lambda: host.copy_from("other", "/a", "/b"), TypeError),
        (lambda: host.copy_from(image("x"), "/a", "/b"), ValueError),
        (lambda: host.env({"HELMR_X": "1"}), ValueError),
        (lambda: host.env({"A-B": "1"}), ValueError),
        (lambda: host.env(A=1), TypeError),
        (lambda: host.user("a b"), ValueError),
        (lambda: host.network("example.com"), TypeError),
        (lambda: host.network(["a/b"]), ValueError),
        (lambda: host.pip_install(), TypeError),
        (lambda: host.pip_install("--index-url=x"), ValueError),
        (lambda: host.pip_install(""), ValueError),
    ],
)
def test_a_step_that_cannot_work_is_refused_where_it_is_written(wrong: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        wrong()


def test_images_are_values_that_compare_by_content() -> None:
    assert image("a").from_host().run(["x"]) == image("a").from_host().run(["x"])
    assert isinstance(host, Image)
