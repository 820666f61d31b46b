"""The one exception that means: the user can mend this."""

from collections.abc import Callable
from typing import Any


class UserError(Exception):
    """Wrong input, found before any engine starts.

    The message is one or two plain sentences: what was wrong, what was expected, what to do. The command line prints it
    without a traceback and exits with code 2.
    """


def refusals(module: str) -> Callable[..., UserError]:
    """Makes the errors of a module (its `__file__`) of the sentences in the YAML file beside it: by a sentence's name,
    and by name what it mentions."""
    from retool_mcore.tables import yaml_beside  # the sandbox's own processes, which raise UserError, have no YAML

    sentences = yaml_beside(module)
    return lambda sentence, **told: UserError(sentences[sentence].format(**told))


def no_run(folder: Any) -> UserError:
    """For a command that looks at a run, of a folder that holds none."""
    return UserError(f"no run in {folder}: give the folder that holds sft, rl and eval, as in runs/quickstart.")


def refused_value(error: Any) -> str:
    """What a pydantic.ValidationError refuses first, as "dedup.words is 0, it should be greater than or equal to 1"."""
    first = error.errors()[0]
    key, said = ".".join(map(str, first["loc"])) or "the whole", first["msg"]
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"there is no key {key}"
    if first["type"] in ("missing", "missing_argument"):
        return f"{key} is missing"
    value = f"{first['input']!r}"[:80]
    return f"{key} is {value}, it {said[6:]}" if said.startswith("Input ") else f"{key} is {value}: {said}"
