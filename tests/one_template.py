"""One process from which all stages of the end-to-end tests are forked, whichever of pytest's workers starts them."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retool_mcore.backends.env import stage_env
from retool_mcore.runner import template

NAMED = "E2E_TEMPLATE"  # its variables, for the workers
E2E = Path(__file__).with_name("e2e")


@contextmanager
def shared() -> Iterator[dict[str, str]]:
    """The variables that name it, which are in the environment meanwhile; started here unless pytest's controller has.

    It finds the modules of tests/e2e, as those of a test that breaks a part must: with another PYTHONPATH than the
    template's they would be started.
    """
    with pytest.MonkeyPatch.context() as patch:
        if NAMED in os.environ:  # and the path
            named = json.loads(os.environ[NAMED])
            for name, value in named.items():
                patch.setenv(name, value)
            yield named
            return
        patch.setenv("PYTHONPATH", str(E2E), prepend=os.pathsep)
        environment = stage_env({"parallel": {"device": "cpu"}})
        own = {name: value for name, value in environment.items() if "RETOOL" not in name}
        with template.forked(own, []) as (made, _):
            named = {name: made[name] for name in template.VARIABLES}
            for name, value in named.items():
                patch.setenv(name, value)
            yield named


@contextmanager
def of_the_controller() -> Iterator[None]:
    with shared() as named, pytest.MonkeyPatch.context() as patch:
        patch.setenv(NAMED, json.dumps(named))
        yield
