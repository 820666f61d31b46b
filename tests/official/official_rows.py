"""Rows as the prepared data hold them, and samples that answer them, for the tests of the official graders."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from recipe_samples import sample as made_sample

from retool_mcore.official.graders import REASONING_GYM


def needs(package):
    """Skip a module's tests where an optional package is not installed."""
    if find_spec(package) is None:
        pytest.skip(f"the optional package {package} is not installed (docs/official.md)", allow_module_level=True)


def entry(family, seed=11, **parameters):
    """A row of a family: {"question", "answer", "entry"}."""
    made = REASONING_GYM.ask("make", 120.0, in_file=True, family=family, parameters=parameters, seed=seed, size=1)
    return made["rows"][0]


def answering(text, extra, pred=None):
    return made_sample(text=text, policy_text=text, extra=extra, pred=text if pred is None else pred, source="made")


def leaderboard_rows(category, count):
    """The first rows of a category of BFCL, as data=bfcl writes their columns."""
    data = Path(find_spec("bfcl_eval").origin).parent / "data"
    name = f"BFCL_v4_{category}.json"
    questions = [json.loads(line) for line in (data / name).read_text().splitlines()[:count]]
    answers = data / "possible_answer" / name
    truths = [json.loads(line) for line in answers.read_text().splitlines()[:count]] if answers.is_file() else []
    found = []
    for number, row in enumerate(questions):
        truth = truths[number]["ground_truth"] if truths else []
        columns = {"function": json.dumps(row["function"]), "possible_answer": json.dumps(truth)}
        found.append(({"category": category, "bfcl_id": row["id"]} | columns, truth))
    return found
