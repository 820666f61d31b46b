"""How the evaluation set is sampled inside a run of RL."""

from retool_mcore.backends.verl.settings import evaluation_set
from retool_mcore.config import compose

SETS = "train.eval_sets=[held_back,evaluation]"
REFERENCE = {"temperature": 1.0, "top_p": 0.6}


def test_the_trainer_is_given_the_sampling_of_the_reference():
    found = evaluation_set(compose("rl", ["data=math", SETS]))
    assert (found["samples"], found["sampling"]) == (30, REFERENCE)
    assert [file.split("/")[-2] for file in found["files"]] == ["aime_2024_maxwell", "aime_2025"]
    assert evaluation_set(compose("rl", ["data=math"])) is None
