"""Overrides that several stages are given at once, by `retool submit` and launch/*.sh: each takes those that it has."""

from collections.abc import Sequence

from retool_mcore.config.overrides import Unknown
from retool_mcore.config.resolve import compose
from retool_mcore.errors import UserError


def own_words(stage: str, overrides: Sequence[str], stages: Sequence[str]) -> list[str]:
    """`overrides` without those whose key or group `stage` has not and another of `stages` has."""
    strange, others = _unknown(stage, overrides), set()
    for other in stages:
        if others == strange:
            break
        others |= strange - _unknown(other, overrides)
    return [word for word in overrides if word not in others]  # compose refuses what no stage has


def _unknown(stage: str, overrides: Sequence[str]) -> set[str]:
    """Those whose key or group the stage has not, as far as it can be composed."""
    found: set[str] = set()
    while True:
        try:
            compose(stage, [word for word in overrides if word not in found])
        except Unknown as error:
            found.add(next(word for word in overrides if error.key.startswith(word.lstrip("+").split("=")[0])))
        except UserError:
            return found  # what else is wrong is told when it is composed
        else:
            return found
