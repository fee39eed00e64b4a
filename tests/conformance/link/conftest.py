"""The link suite shares the two kinds of links with the worker's own tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "worker"))
