"""`helmr completion`."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL, for example: helmr completion bash > ~/.local/share/bash-completion/completions/helmr"""
    from click.shell_completion import get_completion_class

    from helmr.cli.main import root

    kind = get_completion_class(shell)
    assert kind is not None
    source = kind(root, {}, "helmr", "_HELMR_COMPLETE")
    click.echo(source.source_template % source.source_vars())
