"""What all tests share."""

import os

# A stage of the fast tests is a line of Python: a template that imports torch for it would take longer than they do.
# The end-to-end tests have one for all their stages (tests/e2e/conftest.py).
os.environ.setdefault("RETOOL_TEMPLATE", "off")
