"""A small repository with a history worth a review, for a project that carries none of its own."""

import asyncio
from pathlib import Path

from review.git import git

_AUTHOR = (
    "-c",
    "user.name=Sample",
    "-c",
    "user.email=sample@example.invalid",
    "-c",
    "commit.gpgsign=false",
    "-c",
    "init.defaultBranch=main",
)

_STEPS = (
    (
        "Add a price calculator",
        {"shop/price.py": 'def total(prices):\n    """The sum of all prices."""\n    return sum(prices)\n', "shop/__init__.py": ""},
    ),
    (
        "Test the calculator",
        {"tests/test_price.py": "from shop.price import total\n\n\ndef test_total_adds_up():\n    assert total([1, 2]) == 3\n"},
    ),
    (
        "Give a discount",
        {
            "shop/price.py": 'import os\n\n\ndef total(prices):\n    """The sum of all prices."""\n    return sum(prices)\n\n\n'
            "def discounted(prices, percent):\n    return total(prices) * (100 - percent) / 100\n",
            "tests/test_price.py": "from shop.price import discounted, total\n\n\ndef test_total_adds_up():\n    assert total([1, 2]) == 3\n\n\n"
            "def test_half_price():\n    assert discounted([10], 50) == 5\n",
        },
    ),
)


async def write(repository: Path) -> None:
    """Make the repository at a path that doesn't exist yet."""
    await asyncio.to_thread(repository.mkdir, parents=True, exist_ok=True)
    await git(repository, *_AUTHOR, "init", "--quiet")
    for subject, files in _STEPS:
        await asyncio.to_thread(_write_files, repository, files)
        await git(repository, "add", "--all")
        await git(repository, *_AUTHOR, "commit", "--quiet", "-m", subject)


def _write_files(repository: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
