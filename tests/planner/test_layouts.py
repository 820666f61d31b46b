"""Every shipped layout of several GPUs is what the planner says today, for the model and data it is made for."""

import pytest

from retool_mcore.config import CONFIG_DIR, compose
from retool_mcore.planner import changes, run
from retool_mcore.planner.search import NEAR, refusal, search

CHOSEN = {
    "2x8-80g": "qwen2.5-32b",
    "4x8-80g": "qwen2.5-32b",
    "8x8-80g": "qwen2.5-32b",
    "1x8-141g": "qwen2.5-32b",
    "2x8-141g": "qwen2.5-32b",
    "2x8-a100": "qwen2.5-32b",
    "1x8-80g": "qwen3-8b",
    "2gpu": "qwen2.5-7b",
}
NEAREST = [
    ("1x8-a100", "qwen3-8b", []),
    ("1x8-80g", "llama3.1-8b", []),
    ("1x8-80g", "qwen2.5-7b", ["parallel.rollout_tp=4"]),
    ("2x8-80g", "qwen3-32b", []),
    ("2x8-80g", "r1-distill-qwen-32b", []),
]


def judged(layout, model, words=()):
    config = compose("rl", [f"model={model}", f"parallel={layout}", "data=math", *words])
    problem = run.read(config, run.shape_of(config), run.machine_of(config))
    return problem, run.present(config, problem)


@pytest.mark.parametrize("layout", CHOSEN)
def test_a_layout_is_the_planners_choice(layout):
    problem, plan = judged(layout, CHOSEN[layout])
    assert refusal(problem, plan) is None
    assert changes.words(plan, search(problem).chosen) == []
    assert [change.words for change in changes.changes(problem, plan)] == []


@pytest.mark.parametrize(("layout", "model", "words"), NEAREST)
def test_for_other_models_it_fits_and_is_as_quick_as_their_own_would_be(layout, model, words):
    problem, plan = judged(layout, model, words)
    assert refusal(problem, plan) is None
    assert plan.step <= search(problem).chosen.step * NEAR


def test_no_shipped_layout_of_several_gpus_is_left_out():
    shipped = {path.stem for path in (CONFIG_DIR / "parallel").glob("*.yaml") if not path.stem.startswith("cpu-")}
    assert shipped == {"1gpu", *CHOSEN, *(layout for layout, *_ in NEAREST)}
