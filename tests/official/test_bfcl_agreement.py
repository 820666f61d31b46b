"""The reward for function calls gives the leaderboard's own verdict on calls that were made of its accepted values."""

import json
import random
from collections import Counter

import pytest
from official_rows import needs

from tests.support import bfcl_calls

needs("bfcl_eval")


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_every_call_of_every_category_gets_the_official_verdict():
    checker, languages = bfcl_calls.official_checker()
    rng, pairs, apart = random.Random(0), Counter(), []
    for problem in bfcl_calls.problems():
        for kind, calls in bfcl_calls.kinds(problem, rng):
            if calls is None:
                continue
            theirs, mine = bfcl_calls.official(checker, languages, problem, calls), bfcl_calls.ours(problem, calls)
            pairs[problem.extra["category"], theirs] += 1
            if theirs != mine:
                apart.append(f"{problem.extra['bfcl_id']}, {kind}: official {theirs}: {json.dumps(calls)[:300]}")
    categories = {category for category, _ in pairs}
    assert len(categories) > 10 and all(pairs[category, True] for category in categories), pairs
    assert sum(pairs.values()) > 30_000
    assert apart == []
