"""docs/recipes.md is what the configuration says."""

from recipe_cases import EVERY_CHANGE, FUNCTIONS, NIGHTLY, PIPELINE, REPOSITORIES

from docs.recipes import PAGE, comments, configuration, explain, render
from retool_mcore.config import CONFIG_DIR


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == render(), "run `python -m docs.recipes` and commit docs/recipes.md"


def test_comments_are_read_beside_and_above_a_key(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("# head\n\na: 1  # one\nb:\n  # above\n  c: 'x#y'  # beside\n  d: 2\n")
    found = comments(path)
    assert found == {"a": "one", "b.c": "above; beside"}
    assert (explain("b.c.e", found), explain("b.d", found), explain("b.d", found, {"b": "section"})) == (
        "above; beside",
        "",
        "section",
    )


def test_every_recipe_that_runs_is_run_on_engines_by_a_test():
    tested = [*PIPELINE, *EVERY_CHANGE, *NIGHTLY, *FUNCTIONS, *REPOSITORIES]
    runs = [path.stem for path in (CONFIG_DIR / "recipe").glob("*.yaml") if not configuration(path.stem).recipe.needs]
    assert sorted(tested) == sorted(runs)
