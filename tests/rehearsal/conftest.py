"""One template that the rehearsal's processes are forked from; each can record what its engine computes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from retool_mcore.backends.env import stage_env
from retool_mcore.runner import template


@pytest.fixture(scope="session", autouse=True)
def recording_template() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RETOOL_TEMPLATE", raising=False)
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        patch.setenv("VERL_USE_EXTERNAL_MODULES", "recorded_engine")
        patch.setenv("TORCHDYNAMO_DISABLE", "1")  # sixteen processes would compile the experts' activations
        environment = stage_env({"parallel": {"device": "cpu"}})
        with template.forked({name: value for name, value in environment.items() if "RETOOL" not in name}, []) as made:
            for name in template.VARIABLES:
                patch.setenv(name, made[0][name])
            yield
