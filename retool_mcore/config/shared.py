"""Overrides that several stages are given at once, by `retool submit` and launch/*.sh: each takes those that it has."""

from collections.abc import Sequence

from retool_mcore.config import load
from retool_mcore.config.overrides import Unknown
from retool_mcore.errors import UserError


def own_words(stage: str, overrides: Sequence[str], stages: Sequence[str]) -> list[str]:
    """`overrides` without those whose key or group `stage` has not and another of `stages` has."""
    strange = _unknown(stage, overrides)
    nobodys = strange.intersection(*(_unknown(other, overrides) for other in stages if strange))
    return [word for word in overrides if word not in strange - nobodys]  # compose refuses nobody's


def _unknown(stage: str, overrides: Sequence[str]) -> set[str]:
    """Return the overrides whose key or group the stage does not have, as far as it can be composed."""
    keys = {word: word.lstrip("+").split("=")[0] for word in overrides}
    while True:
        try:
            load.resolve(stage, list(keys))
            break
        except Unknown as error:
            # The longest: data=file stands before data.file.x=1, and a section's word before its keys.
            del keys[max((word for word in keys if error.key.startswith(keys[word])), key=lambda word: len(keys[word]))]
        except UserError:
            break  # other errors are reported when it is composed
    return set(overrides) - set(keys)
