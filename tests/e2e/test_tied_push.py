"""The output layer of a tied model is compared with the exported embedding, however vLLM holds it, in every family."""

import json
import os
from pathlib import Path

import pytest
from families import FAMILIES
from forked_programs import lines_printed, started

from retool_mcore.backends.verl.fingerprint import EMBEDDING, HEAD

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1200)]

EQUAL = (
    "shared",
    "shared, head exported",
    "pushed with a head",
    "own head",
    "one layer",
    "one layer, head exported",
)
DIFFERENT = {
    "another head exported": f"the trainer exported other values for {HEAD} than for {EMBEDDING}",
    "own head, wrong": f"{HEAD} in the engine is not what the trainer exported",
    "embedding wrong": f"{EMBEDDING} in the engine is not what the trainer exported",
}


@pytest.fixture(scope="module")
def found(shared_template) -> dict[str, str | None]:
    program = Path(__file__).with_name("tied_engine.py").read_text()
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    printed = lines_printed({"push": started(program, PYTHONPATH=path)})["push"]
    (line,) = (text for text in printed if text.startswith("FOUND "))
    return json.loads(line.removeprefix("FOUND "))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tied_head_is_the_exported_embedding(found, family, ranks):
    assert {case: found[f"{family} {case} on {ranks}"] for case in EQUAL} == dict.fromkeys(EQUAL)
    for case, words in DIFFERENT.items():
        assert found[f"{family} {case} on {ranks}"].startswith(words)
