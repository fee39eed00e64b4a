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

_PRICE = '''def total(prices):
    """The sum of all prices."""
    return sum(prices)
'''

_DISCOUNT = """

def discounted(prices, percent):
    return total(prices) * (100 - percent) / 100
"""

_TEST = """from shop.price import total


def test_total_adds_up():
    assert total([1, 2]) == 3
"""

_DISCOUNT_TEST = """

def test_half_price():
    assert price.discounted([10], 50) == 5
"""

_STEPS = (
    ("Add a price calculator", {"shop/__init__.py": "", "shop/price.py": _PRICE}),
    ("Test the calculator", {"tests/test_price.py": _TEST}),
    (
        "Give a discount",
        {
            "shop/price.py": "import os\n\n\n" + _PRICE + _DISCOUNT,
            "tests/test_price.py": "from shop import price\n" + _TEST + _DISCOUNT_TEST,
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
