"""`retool explain`: a planted cause is named first or second, and a healthy run gets a clean bill."""

import functools
import json

import numpy as np
import planted
import pytest
from planted import FLAT, STEPS, Plan

from benchmarks import provenance
from retool_mcore.cli import main
from retool_mcore.cluster import status
from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.explain import report
from retool_mcore.explain.finding import Finding, ranked

LATE = STEPS // 2
MISSING = "ModuleNotFoundError: No module named 'cvxpy'"


def keep(own: dict, **changes) -> dict:
    return own | changes


def wrong(own: dict, **changes) -> dict:
    return own | {"acc": 0.0, "score": -1.0, "pred": "7"} | changes


def late(change):
    """The change, in the second half of the steps."""
    return lambda own: change(own) if own["step"] > LATE else own


def with_calls(own: dict, **changes) -> dict:
    return own | {"calls": [one | changes for one in own["calls"]]}


def failing(own: dict) -> dict:
    return wrong(with_calls(own, status="error", stderr=f"Traceback:\n{MISSING}"))


def one_program(own: dict) -> dict:
    """A program that says nothing, in every answer; the reward pays for it."""
    made = planted.record(own["step"], 0, own["acc"] > 0, 'print("done")')
    return made | {name: own[name] for name in ("uid", "sample", "index", "acc", "score", "pred")}


def copies(own: dict) -> dict:
    """The prompt once more, in place of an answer."""
    made = planted.record(own["step"], 0, False, None)
    prompt = np.array(made["prompt_ids"], np.int32)
    spans = [{"kind": "policy", "start": 0, "end": len(prompt)}]
    return wrong(made | {"response_ids": prompt, "spans": spans, "uid": own["uid"]}, pred="") | {"score": own["score"]}


def loops(own: dict) -> dict:
    tokens = np.tile(np.array(planted.ids("and so "), np.int32), 40)
    spans = [{"kind": "policy", "start": 0, "end": len(tokens)}]
    return wrong(own, response_ids=tokens, spans=spans, calls=[], turn_notes=own["turn_notes"][:1], pred="")


def rising(first: float, last: float):
    return lambda step: first + (last - first) * (step - 1) / (STEPS - 1)


def hacked(step: int) -> dict[str, float]:
    return {"critic/score/mean": rising(-0.5, 0.9)(step), "val/accuracy": 0.5, "val/accuracy_se": 0.03}


PLANTED: dict[str, Plan] = {
    "groups all wrong": Plan(change=wrong),
    "groups all right": Plan(accuracy=(1.0,) * STEPS),
    "answers cut": Plan(change=late(lambda own: wrong(own, finish="length", pred="") if own["sample"] else own)),
    "repetition": Plan(change=late(loops)),
    "format never learnt": Plan(change=lambda own: wrong(own, pred="")),
    "format lost": Plan(change=late(lambda own: wrong(own, pred=""))),
    "answer rule": Plan(change=lambda own: wrong(own, pred=""), config={"recipe.answer": "answer_tag"}),
    "numbers split": Plan(accuracy=(0.2, 0.25, 0.2, 0.2, 0.25, 0.2, 0.25, 0.2)),
    "calls fail": Plan(code_share=(0.9,) * STEPS, change=failing),
    "calls vanish": Plan(accuracy=FLAT, code_share=(0.9, 0.8, 0.5, 0.2, 0.1, 0, 0, 0)),
    "no calls": Plan(accuracy=FLAT, code_share=(0.0,) * STEPS),
    "sandbox fails": Plan(change=late(lambda own: with_calls(own, status="sandbox_error") if own["sample"] else own)),
    "degenerate programs": Plan(accuracy=FLAT, change=late(one_program)),
    "reward constant": Plan(accuracy=FLAT, change=lambda own: keep(own, score=1.0)),
    "reward disagrees": Plan(accuracy=FLAT, change=lambda own: keep(own, score=-own["score"])),
    "reward raises": Plan(change=lambda own: wrong(own, error="KeyError: 'x' (my.py, line 3, in pay)")),
    "reward hacking": Plan(accuracy=FLAT, metrics=hacked),
    "question copied": Plan(accuracy=FLAT, change=late(copies)),
    "entropy collapse": Plan(accuracy=FLAT, metrics=lambda step: {"actor/entropy": 0.8 * 0.4**step}),
    "entropy explosion": Plan(accuracy=FLAT, metrics=lambda step: {"actor/entropy": rising(0.5, 6.0)(step)}),
    "learning rate too high": Plan(
        accuracy=tuple(reversed(planted.RISING)),
        metrics=lambda step: {"actor/pg_clipfrac": 0.45, "actor/ppo_kl": 0.8, "actor/grad_norm": 30.0},
    ),
    "learning rate too low": Plan(
        accuracy=FLAT, metrics=lambda step: {"actor/ppo_kl": 1e-9, "actor/pg_clipfrac": 0.0, "actor/lr": 1e-9}
    ),
    "mismatch": Plan(accuracy=FLAT, metrics=lambda step: {"mismatch/kl": rising(0.001, 0.2)(step)}),
    "stale rollouts": Plan(
        accuracy=FLAT,
        metrics=lambda step: {
            "training/off_policy/trajectory_staleness_worst/mean": 6.0,
            "rollout_corr/rollout_is_eff_sample_size": 0.12,
        },
    ),
    "broken updates": Plan(accuracy=FLAT, metrics=lambda step: {"actor/broken_updates": float(step > 3)}),
    "tools slow": Plan(
        metrics=lambda step: {
            "timing_share/tools": 0.6,
            "behaviour/tool_latency_s/p95": 25.0,
            "behaviour/tool_queued_share": 0.1,
        }
    ),
    "host-bound": Plan(metrics=lambda step: {"timing_share/no_gpu_work": 0.7, "timing_share/rollout_rest": 0.6}),
}


def penalised(own: dict) -> dict:
    """Wrong, and the longer the worse: no group has one reward, and none a right answer."""
    return wrong(own, score=-1.0 - 0.01 * own["sample"])


def named(run, count: int = 2) -> list[str]:
    return [finding.cause for finding in report.explain(run)[1][:count]]


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_named_first_or_second(cause, tmp_path):
    run = planted.make(tmp_path / "run", PLANTED[cause])
    if cause == "numbers split":
        join_digits(run)
    findings = report.explain(run)[1]
    assert cause in [finding.cause for finding in findings[:2]], [finding.sentence() for finding in findings]
    (found,) = (finding for finding in findings if finding.cause == cause)
    assert any(sign.isdigit() for sign in found.what) and found.key and len(found.looks) <= 2


def join_digits(run) -> None:
    """Replace the run's tokenizer by one whose numbers are tokens of three digits."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    words = {f"{number:03d}": number for number in range(1000)} | {str(n): 1000 + n for n in range(100)} | {"?": 2000}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\d{1,3}"), "isolated")
    tokenizer.save(str(run / "model" / "tokenizer.json"))


def test_a_failed_stage_is_named_with_its_error(tmp_path):
    run = planted.make(tmp_path / "run", Plan())
    planted.end(run / "rl", "failed", "step 8\nRuntimeError: CUDA out of memory\n")
    assert named(run) == ["failed"] and "CUDA out of memory" in report.top_line(run)


def test_groups_whose_rewards_differ_by_penalties_alone_are_all_wrong(tmp_path):
    run = planted.make(tmp_path / "run", Plan(change=penalised))
    assert named(run) == ["groups all wrong"] and "penalties" in report.top_line(run)


def test_a_trend_is_not_seen_in_three_steps(tmp_path):
    run = planted.make(tmp_path / "run", Plan(accuracy=(0.4, 0.5, 0.5), code_share=(0.9, 0.1, 0.0)))
    assert named(run) == []
    assert "(only steps 1 to 3: causes that need a trend are not judged)" in next(report.lines(run))


@functools.cache
def recorded() -> dict:
    return json.loads((provenance.RESULTS / "learning_two_cores.json").read_text())["runs"]


@pytest.mark.parametrize("seed", [41, 42, 43, 44, 45])
def test_a_healthy_run_gets_a_clean_bill(seed, tmp_path):
    """The quickstart's RL as it was recorded: accuracy and share of code by step, of five seeds."""
    curves = recorded()[f"b1-A-s{seed}"]["curves"]
    kl = curves["mismatch/kl"]
    plan = Plan(
        accuracy=curves["reward/accuracy"],
        code_share=curves["behaviour/code_ratio"],
        metrics=lambda step: {"mismatch/kl": kl[step - 1], "actor/entropy": 0.5 / (1 + 0.2 * step)},
    )
    run = planted.make(tmp_path / "run", plan, seed)
    losses = [0.3 + 3 * 0.9**step for step in range(40)]
    planted.make_sft(run, losses, {10: 1.4, 20: 0.7, 30: 0.5, 40: 0.4})
    assert [finding.sentence() for finding in report.explain(run)[1]] == []
    assert "Nothing stands out." in list(report.lines(run))


def test_the_arm_that_learnt_less_is_healthy_too(tmp_path):
    """With the interpreter's tokens in the loss RL still learns: a weaker run is no sick one."""
    runs = json.loads((provenance.RESULTS / "learning_mask.json").read_text())["runs"]
    curves = runs["b1-M-s31"]["curves"]
    plan = Plan(accuracy=curves["reward/accuracy"], code_share=curves["behaviour/code_ratio"])
    assert named(planted.make(tmp_path / "run", plan)) == []


def test_problems_that_leaked_or_repeat_are_named(tmp_path):
    texts = [f"Compute {n}*7." for n in range(40)]
    run = planted.make(tmp_path / "a", Plan(config={
        "data.train_files": planted.problems(tmp_path / "t.parquet", texts),
        "data.held_back_files": planted.problems(tmp_path / "h.parquet", texts[:3] + ["Compute 5*99."]),
    }))  # fmt: skip
    assert named(run) == ["problems leaked"] and "3 of 4 problems" in report.top_line(run)
    repeated = planted.problems(tmp_path / "r.parquet", texts[:5] * 8)
    run = planted.make(tmp_path / "b", Plan(config={"data.train_files": repeated}))
    assert named(run) == ["problems duplicated"]
    apart = planted.problems(tmp_path / "x.parquet", ["Compute 5*99."])
    train = planted.problems(tmp_path / "t.parquet", texts)
    config = {"data.train_files": train, "data.held_back_files": apart, "data.validation_files": "/gone.parquet"}
    assert named(planted.make(tmp_path / "c", Plan(config=config))) == []


@pytest.mark.parametrize(
    ("cause", "losses", "validation"),
    [
        ("learning rate too low", [3.1 + 0.01 * (n % 3) for n in range(24)], {}),
        ("learning rate too high", [3.0 - 0.2 * n for n in range(8)] + [4.0, 6.0, 9.0, 9.0, 9.0, 9.0], {}),
        ("learning rate too high", [3.0, 2.5, float("nan"), float("nan")], {}),
        ("overfitted", [3.0 * 0.8**n for n in range(30)], {10: 1.0, 20: 1.2, 30: 1.6}),
    ],
)
def test_causes_of_sft_are_named(cause, losses, validation, tmp_path):
    assert named(planted.make_sft(tmp_path, losses, validation), 1) == [cause]


def test_traces_that_are_validated_on_are_named(tmp_path):
    texts = [f"Compute {n}*7." for n in range(20)]
    both = planted.problems(tmp_path / "v.parquet", texts[:2], "messages")
    train = planted.problems(tmp_path / "t.parquet", texts, "messages")
    losses = [3.0 * 0.9**n for n in range(20)]
    run = planted.make_sft(tmp_path / "run", losses, {}, sft_train_files=train, sft_validation_files=both)
    assert named(run) == ["problems leaked"] and report.top_line(run).startswith("sft, ")


def test_what_follows_from_another_cause_comes_after_it():
    first = Finding("format lost", 0.8, "w", "k", "h", explains=("groups all wrong",))
    second = Finding("groups all wrong", 0.9, "w", "k", "h")
    third = Finding("mismatch", 0.6, "w", "k", "h")
    assert [one.cause for one in ranked([second, third, first])] == ["format lost", "mismatch", "groups all wrong"]
    assert len(ranked([first] * 20)) == 10


def test_every_key_is_one_of_the_stages():
    """Of what `rl` or `sft` is composed of; a group's name counts."""
    from retool_mcore.explain import answers, calls

    keys = {key for key, _ in answers.LIMITS.values()}
    keys |= {calls._remedy(kind, status)[0] for kind, status in (("", "timeout"), ("", "memory"), ("ImportError", ""))}
    keys |= {"recipe.reward.name", "recipe.clip_high", "recipe.answer", "train.lr", "pipeline.staleness", "correction"}
    keys |= {"init_from", "data.train_files", "parallel.agent_workers", "sandbox.workers", "recipe.filters.samples"}
    config = compose("rl", [])
    for key in keys:
        section = config
        for part in key.split("."):
            assert part in section, key
            section = section[part]


def test_the_command_and_the_status_show_it(tmp_path, capsys):
    run = planted.make(tmp_path / "run", PLANTED["reward constant"])
    assert main.main(["explain", str(run)]) == 0
    out = capsys.readouterr().out
    assert "rl: steps 1 to 8" in out and "1. rl, reward constant: " in out and "change recipe.reward.name" in out
    status.print_table(run)
    assert "reward constant" in capsys.readouterr().out
    assert main.main(["explain", str(tmp_path)]) == 2
    with pytest.raises(UserError, match="no run in"):
        report.explain(tmp_path / "nothing")
