"""The table of a step in train/rl.py is what verl's trainer does with our classes."""

import pytest

from retool_mcore.backends.verl.run import check_step
from retool_mcore.backends.verl.trainer import RetoolTrainer
from retool_mcore.train.rl import STEP


def test_the_table_is_the_order_of_verls_step():
    check_step(STEP.values())
    update, advantages = (next(place for place in STEP.values() if name in place) for name in ("update_a", "advantage"))
    with pytest.raises(RuntimeError, match="does not call _compute_advantage"):
        check_step([update, advantages])
    with pytest.raises(RuntimeError, match="is not there"):
        check_step([STEP["rewards"] + "_gone"])


def test_the_trainer_that_runs_does_each_there():
    for place in STEP.values():
        _, owner, name = place.rsplit(".", 2)
        if owner in {base.__name__ for base in RetoolTrainer.__mro__}:
            # The class before it in the order of resolution may do something around it.
            defined = [base for base in RetoolTrainer.__mro__ if name in vars(base)]
            assert place in {f"{base.__module__}.{base.__name__}.{name}" for base in defined}, place
