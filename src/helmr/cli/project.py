"""`helmr init`."""

from __future__ import annotations

from pathlib import Path

import click

from helmr.cli.terminal import Output


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=".")
@click.option(
    "--repository",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Let the project carry this git repository's history for its Agent.",
)
@click.option(
    "--template",
    type=click.Choice(("reviewer", "text", "schema", "question", "scheduled", "team")),
    default="reviewer",
    show_default=True,
    help="What kind of Agent the project begins with.",
)
@click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object.")
def init(path: Path, repository: Path | None, template: str, as_json: bool) -> None:
    """Write a project that runs into PATH; nothing is overwritten."""
    from helmr.publish import scaffold

    output = Output(as_json=as_json)
    files = scaffold.init(path, template=template, repository=repository)

    def show() -> None:
        for file in files:
            output.line(str(path / file))

    output.answer({"path": str(path.resolve()), "template": template, "files": list(files)}, show)
    output.note(f"Next: helmr dev {path}")
