"""What all tests share."""

import os
from pathlib import Path

import pytest
import quick_compose

# A stage of the fast tests is a line of Python: a template that imports torch for it would take longer than they do.
# The end-to-end tests have one for all their stages (tests/e2e/conftest.py).
os.environ.setdefault("RETOOL_TEMPLATE", "off")
quick_compose.remember()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of the end-to-end tests alone (launch/test.sh e2e), a file without any is not imported: half a minute."""
    alone = config.option.markexpr.startswith("e2e and")
    return True if alone and collection_path.suffix == ".py" and "e2e" not in collection_path.read_text() else None
