"""Writes the types of `helmr.sync` from the sources of the asynchronous client: `python -m helmr.sync.stubs`."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import helmr.client
import helmr.sync
from helmr.sync.mirror import SPECIAL

NAMES = tuple(helmr.sync.__all__)
HEADER = '# Written by "python -m helmr.sync.stubs" from the sources of helmr.client. Don\'t edit.\n'
TARGET = Path(__file__).with_name("__init__.pyi")


def stub() -> str:
    """The stub's text."""
    written = _Stub([getattr(helmr.client, name) for name in NAMES])
    return _ruff(["format"], _ruff(["check", "--select", "I", "--fix", "--quiet"], written.text()))


def _ruff(command: list[str], text: str) -> str:
    arguments = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(arguments, input=text, capture_output=True, text=True, check=True, timeout=60).stdout


class _Stub:
    """Collects classes, and from their modules whatever the classes' annotations name."""

    def __init__(self, kinds: list[type[Any]]) -> None:
        self._mirrored = {kind.__name__ for kind in kinds}
        self._imports: set[str] = set()
        self._variables: dict[str, str] = {}
        self._classes = [self._class(kind) for kind in kinds]

    def text(self) -> str:
        imports = sorted(self._imports | {"from collections.abc import Iterator"})
        return "\n".join(
            [HEADER, *imports, "", *self._variables.values(), "", *map(ast.unparse, self._classes), f"__all__ = {sorted(self._mirrored)!r}"]
        )

    def _class(self, kind: type[Any]) -> ast.ClassDef:
        module = sys.modules[kind.__module__]
        tree = ast.parse(inspect.getsource(module))
        source = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)
        methods = [node for node in source.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        body: list[ast.stmt] = [node for node in source.body[:1] if isinstance(node, ast.Expr)]
        for init in methods:
            if init.name == "__init__":
                body += _attributes(init)
        overloaded = {node.name for node in methods if _is_overload(node)}
        for method in methods:
            wanted = (
                not method.name.startswith("_") or method.name in SPECIAL or (method.name == "__init__" and kind.__name__ == "HelmrClient")
            )
            if wanted and (_is_overload(method) or method.name not in overloaded):
                body.append(_blocking(method))
        written = ast.ClassDef(name=source.name, bases=source.bases, keywords=[], body=body, decorator_list=[])
        self._resolve(written, tree, module)
        return written

    def _resolve(self, written: ast.ClassDef, tree: ast.Module, module: ModuleType) -> None:
        """Import or define each name that the class uses and does not get from this stub or the language."""
        bindings = _bindings(tree, module)
        for node in ast.walk(written):
            if isinstance(node, ast.Name) and node.id in bindings and node.id not in self._mirrored:
                found = bindings[node.id]
                if isinstance(found, str):
                    self._imports.add(found)
                else:
                    self._variables[node.id] = ast.unparse(found)
                    self._imports.add("from typing import TypeVar")


def _bindings(tree: ast.Module, module: ModuleType) -> dict[str, str | ast.Assign]:
    found: dict[str, str | ast.Assign] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            for alias in node.names:
                renamed = f" as {alias.asname}" if alias.asname else ""
                found[alias.asname or alias.name] = f"from {node.module} import {alias.name}{renamed}"
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = f"from {module.__name__} import {node.name}"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            is_variable = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "TypeVar"
            name = node.targets[0].id
            found[name] = node if is_variable else f"from {module.__name__} import {name}"
    return found


def _blocking(method: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.FunctionDef:
    body: list[ast.stmt] = [node for node in method.body[:1] if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    returns = method.returns
    written = ast.FunctionDef(
        name=SPECIAL.get(method.name, method.name),
        args=method.args,
        body=body or [ast.Expr(ast.Constant(...))],
        decorator_list=method.decorator_list,
        returns=returns,
    )
    for node in ast.walk(written):
        if isinstance(node, ast.Name) and node.id == "AsyncIterator":
            node.id = "Iterator"
    return ast.fix_missing_locations(written)


def _attributes(init: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """Public attributes that `__init__` sets, typed as it does."""
    parameters = {argument.arg: argument.annotation for argument in (*init.args.args, *init.args.kwonlyargs)}
    found: list[ast.stmt] = []
    for node in init.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
        if not isinstance(target, ast.Attribute) or target.attr.startswith("_") or not isinstance(node, (ast.Assign, ast.AnnAssign)):
            continue
        value = node.value
        if isinstance(node, ast.AnnAssign):
            kind: ast.expr | None = node.annotation
        elif isinstance(value, ast.Call):
            kind = value.func
        elif isinstance(value, ast.Name):
            kind = parameters[value.id]
        else:
            kind = ast.Name(type(ast.literal_eval(node.value)).__name__)
        assert kind is not None, f"{target.attr} has no type that can be written down"
        found.append(ast.AnnAssign(target=ast.Name(target.attr), annotation=kind, simple=1))
    return found


def _is_overload(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(item, ast.Name) and item.id == "overload" for item in method.decorator_list)


if __name__ == "__main__":
    TARGET.write_text(stub(), encoding="utf-8")
