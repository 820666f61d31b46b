"""docs/security.md says what preflight says and what the results have."""

import pytest

from docs import security


def test_the_page_is_up_to_date():
    page = security.PAGE.read_text()
    assert page == security.render(page), "run `python -m docs.security` and commit docs/security.md"


def test_a_page_without_a_place_for_a_table_is_refused():
    with pytest.raises(ValueError, match="0 places for the table preflight"):
        security.render("# Security\n")
