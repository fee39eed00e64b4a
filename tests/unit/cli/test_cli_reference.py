"""`docs/reference/cli.md` is made from the commands."""

from __future__ import annotations

from helmr.cli import reference


def test_the_reference_page_is_current() -> None:
    """Mended by `python -m helmr.cli.reference`."""
    assert reference.target().read_text(encoding="utf-8") == reference.page()
