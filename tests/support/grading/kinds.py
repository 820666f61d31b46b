"""Generated pairs of the kinds of answers that real data showed to be misjudged."""

from random import Random

from tests.support.grading.kinds_false import FALSE_ACCEPTS
from tests.support.grading.kinds_true import RIGHT_REFUSED

KINDS = FALSE_ACCEPTS | RIGHT_REFUSED


def pairs(kind: str, seed: int, count: int) -> list[tuple[str, str, bool]]:
    """Return at least `count` different (answer, truth, whether they are the same) of one of KINDS."""
    random, found = Random(f"{kind} {seed}"), {}
    while len(found) < count:
        for answer, truth, same in KINDS[kind](random):
            if answer != truth:
                found[answer, truth] = same
    return [(*pair, same) for pair, same in found.items()]
