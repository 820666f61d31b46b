"""LoRA on GPUs, stage by stage: what is trained, saved, merged, pushed, resumed and exported, of the embedded model.

Every check prints a line. A stage that fails prints the end of its log, and what needs it fails, too.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import load_file

RETOOL = (sys.executable, "-c", "import sys; from retool_mcore.cli.main import main; sys.exit(main())")
DATA = ("data.arithmetic.sft=640", "data.arithmetic.train=64", "data.arithmetic.validation=32")
SIZE = (*DATA, "data.arithmetic.held_back=4", "data.sft.steps=40", "data.sft.warmup_steps=2", "data.sft.save_every=20")
SIZE += ("data.sft.eval_every=20", "data.sft.lr=1e-2", "data.sft.min_lr=1e-3")
# The reward grows worse with every token above 10, so that even this policy's groups have advantages.
RL = ("recipe.overlong_buffer=150", "recipe.kl_loss=true", "recipe.kl_coefficient=0.01", "data.rl.batch=4")
RL += ("data.rl.mini_batch=4", "data.rl.n=4", "data.rl.save_every=1", "data.rl.lr=2e-3", "train.keep_checkpoints=3")
# No profile of the memory, which fails where a neighbour on the same GPU frees some.
RL += ("+verl.actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=1500000000",)
ONE = ("parallel=1gpu",)
TP2 = ("parallel=1gpu", "parallel.gpus_per_node=2", "parallel.tp=2", "parallel.sequence_parallel=true")
OWN_ENGINE = ("parallel=1gpu", "pipeline=one_step_off")
RANK, ALPHA = 16, 32
LORA = (f"model.lora.rank={RANK}", f"model.lora.alpha={ALPHA}")
HALF = 20  # the SFT step that a second attempt goes on from
# PEFT's names of what is below each of Megatron's four products.
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Checks:
    """What was found, a line each."""

    def __init__(self):
        self.lines: list[dict] = []

    def __call__(self, what: str, good: bool, **found: object) -> None:
        self.lines.append({"what": what, "good": bool(good), **found})
        told = ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in found.items()
        )
        print(f"{'ok  ' if good else 'BAD '} {what}: {told}", flush=True)

    def part(self, name: str, check: Callable[[], None]) -> None:
        try:
            check()
        except Exception as error:
            traceback.print_exc()
            self(f"{name} could be looked at", False, error=repr(error)[:300])


def retool(stage: str, runs: Path, name: str, *words: str) -> None:
    """A stage to its end; raises RuntimeError with the end of its output."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("RETOOL_")} | {"RETOOL_TEMPLATE": "on"}
    began = time.monotonic()
    done = subprocess.run(
        [*RETOOL, stage, f"name={name}", f"runs_dir={runs}", *SIZE, *words], env=env, text=True, capture_output=True
    )
    print(f"---- {name}: {stage} took {time.monotonic() - began:.0f} s, exit code {done.returncode}", flush=True)
    if done.returncode:
        log = runs / name / stage / "log.txt"
        tail = log.read_text(errors="replace")[-6000:] if log.exists() else ""
        print(done.stdout[-2000:], done.stderr[-3000:], tail, sep="\n", flush=True)
        raise RuntimeError(f"{name}: {stage} failed")


def metrics(stage: Path) -> dict[int, dict[str, float]]:
    steps: dict[int, dict[str, float]] = {}
    for path in sorted(stage.glob("metrics/attempt_*.jsonl")):
        for record in map(json.loads, path.read_text().splitlines()):
            steps.setdefault(record["step"], {}).update(record["data"])
    return steps


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def fork(runs: Path, source: str, name: str, stage: str, step: int) -> None:
    """A run `name` that has `source`'s files up to the checkpoint of a step."""
    (runs / name / stage / "checkpoints").mkdir(parents=True)
    for part in ("data", "model", "sft"):
        if part != stage and (runs / source / part).exists():
            (runs / name / part).symlink_to(runs / source / part)
    place = f"checkpoints/global_step_{step}"
    shutil.copytree(runs / source / stage / place, runs / name / stage / place)


def check_merged(checks: Checks, base: Path, policy: Path, rank: int) -> None:
    """The policy's weights are the base's, and where an adapter lies base + B A alpha / rank, by the adapter's file."""
    old, new, adapter = weights(base), weights(policy), load_file(policy / "adapter" / "adapter_model.safetensors")
    dtype = next(iter(new.values())).dtype
    expected = {name: tensor.to(dtype) for name, tensor in old.items() if name in new}
    largest, moved, adapted = 0.0, 0.0, set()
    for name in new:
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{stem}.lora_B.weight" in adapter:
            low, high = adapter[f"{stem}.lora_A.weight"].float(), adapter[f"{stem}.lora_B.weight"].float()
            largest, adapted = max(largest, high.abs().max().item()), adapted | {name.split(".")[-2]}
            added = ALPHA / rank * (high @ low)
            moved = max(moved, added.norm().item())
            expected[name] = (expected[name].float() + added).to(dtype)
    off = {name: (expected[name].float() - new[name].float()).abs() for name in expected}
    ulp = {name: torch.finfo(dtype).eps * expected[name].float().abs().max().item() for name in expected}
    others = [name for name in expected if name.split(".")[-2] not in adapted or not name.endswith("weight")]
    different = sum((gap > 0).sum().item() for gap in off.values()) / sum(gap.numel() for gap in off.values())
    checks(
        "every projection has an adapter that moved",
        largest > 0 and adapted == set(PROJECTIONS),
        largest_B=largest,
        largest_norm_of_B_A=moved,
        adapted=sorted(adapted),
    )
    checks(
        "what has no adapter is the base's, bit by bit",
        all(off[name].max() == 0 for name in others),
        tensors=len(others),
    )
    checks(
        "merged is base + B A alpha / rank, but for a rounding",
        len(expected) == len(new) and all(off[name].max() <= ulp[name] for name in off),
        dtype=str(dtype),
        tensors=len(new),
        largest_difference=max(gap.max().item() for gap in off.values()),
        share_that_rounds_otherwise=different,
    )


def check_optimizer(checks: Checks, checkpoint: Path, policy: Path, base: Path) -> None:
    """Adam's state, and Megatron's shards of the model, are the adapters' alone."""
    from torch.distributed.checkpoint import FileSystemReader

    adapter = load_file(policy / "adapter" / "adapter_model.safetensors")
    # PEFT's form repeats what q, k and v, or gate and up, share.
    counted = sum(
        t.numel()
        for name, t in adapter.items()
        if not any(f"{twice}.lora_A" in name for twice in ("k_proj", "v_proj", "up_proj"))
    )
    found = {}
    for part in ("model", "optimizer"):
        held = FileSystemReader(checkpoint / part / "dist_ckpt").read_metadata().state_dict_metadata
        found[part] = {name: entry.size.numel() for name, entry in held.items() if hasattr(entry, "size")}
    names = [name for name in found["model"] if "adapter" not in name]
    checks(
        "Megatron's shards are the adapters'",
        not names and sum(found["model"].values()) == counted,
        elements=sum(found["model"].values()),
        adapters=counted,
        others=names[:3],
    )
    moments = {name: size for name, size in found["optimizer"].items() if "exp_avg" in name and "sq" not in name}
    total, whole = sum(moments.values()), sum(t.numel() for t in weights(base).values())
    checks(
        "Adam's state is the adapters' (buckets are padded)",
        counted <= total <= 1.2 * counted + 4096,
        elements=total,
        adapters=counted,
        model=whole,
        names=sorted(moments)[:2],
    )


def check_sft(checks: Checks, runs: Path) -> None:
    steps, sft = metrics(runs / "t" / "sft"), runs / "t" / "sft"
    first, last = (sum(steps[step]["train/loss"] for step in span) / len(span) for span in ([1, 2], [39, 40]))
    checks("SFT: the loss falls", last < 0.9 * first, first=first, last=last)
    policy = (sft / "policy").resolve()
    told = json.loads((policy / "adapter" / "lora.json").read_text())
    checks(
        "SFT: the checkpoint says what it is of",
        told["lora"]["rank"] == RANK and len(told["base"]) == 64,
        lora=told["lora"],
        path=told["path"],
    )
    check_merged(checks, runs / "t" / "model", policy, RANK)
    check_optimizer(checks, sft / "checkpoints" / "global_step_40", policy, runs / "t" / "model")


def check_sft_resumed(checks: Checks, runs: Path, name: str) -> None:
    """Steps after HALF are the undisturbed run's, as near as sums in another order are."""
    one, two = metrics(runs / "t" / "sft"), metrics(runs / name / "sft")
    steps = sorted(two)
    gaps = {
        key: max(abs(two[s][key] - one[s][key]) / abs(one[s][key]) for s in steps if key in one[s])
        for key in ("train/loss", "train/grad_norm")
    }
    checks(
        f"SFT resumed ({name}): the steps after are alike",
        steps[0] == HALF + 1 and gaps["train/loss"] < 0.02,
        first=steps[0],
        loss=gaps["train/loss"],
        grad_norm=gaps["train/grad_norm"],
    )
    start, end, other = (
        load_file(runs / n / f"sft/checkpoints/global_step_{s}/model/huggingface/adapter/adapter_model.safetensors")
        for n, s in (("t", HALF), ("t", 40), (name, 40))
    )
    went = sum((end[k].float() - start[k].float()).norm() ** 2 for k in end).sqrt().item()
    off = sum((end[k].float() - other[k].float()).norm() ** 2 for k in end).sqrt().item()
    checks(f"SFT resumed ({name}): the adapters end alike", off < 0.2 * went, they_moved=went, they_differ=off)


def check_rl(checks: Checks, runs: Path, name: str, steps: Sequence[int]) -> None:
    found, rl = metrics(runs / name / "rl"), runs / name / "rl"
    for step in steps:
        said = found[step]
        checks(
            f"RL ({name}): push of step {step} verified, engine and trainer agree",
            said["push/verified"] >= 1 and said["mismatch/mean"] < 0.05,
            **{
                key: said.get(key, -1.0)
                for key in (
                    "push/tensors",
                    "push/verified",
                    "mismatch/mean",
                    "mismatch/max",
                    "actor/kl_loss",
                    "actor/grad_norm",
                    "actor/pg_loss",
                    "critic/score/mean",
                )
            },
        )
    if 1 in steps:
        kl = [found[step]["actor/kl_loss"] for step in (1, 2)]
        checks(
            f"RL ({name}): the reference is the policy without adapters",
            abs(kl[0]) < 1e-4 and kl[1] > 10 * abs(kl[0]),
            kl_step_1=kl[0],
            kl_step_2=kl[1],
        )
    bases = {
        json.loads(path.read_text())["base"]
        for path in rl.glob("checkpoints/global_step_*/actor/model/huggingface/adapter/lora.json")
    }
    checks(f"RL ({name}): its checkpoints lie on one base", len(bases) == 1, bases=len(bases))
    check_merged(checks, (runs / name / "sft" / "policy").resolve(), (rl / "policy").resolve(), RANK)
    last = max((rl / "checkpoints").glob("global_step_*"), key=lambda path: int(path.name.rsplit("_", 1)[1]))
    check_optimizer(checks, last / "actor", (rl / "policy").resolve(), runs / name / "model")


def check_export(checks: Checks, runs: Path) -> None:
    folder = runs / "t" / "export" / "policy"
    said, one, two = (
        json.loads((folder / "export.json").read_text()),
        weights(folder),
        weights((runs / "t/rl/policy").resolve()),
    )
    same = one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    checks(
        "export: the merged weights, proven against transformers, no adapter beside them",
        same and not (folder / "adapter").exists(),
        step=said["step"],
        log_prob_difference=said["log_prob_difference"],
        limit=said["limit"],
    )


def check_eval(checks: Checks, runs: Path) -> None:
    results = [json.loads(path.read_text()) for path in (runs / "t" / "eval").rglob("metrics.json")]
    checks("evaluation of the export has a result", bool(results), files=len(results))


def check_refused(checks: Checks, runs: Path) -> None:
    done = subprocess.run(
        [*RETOOL, "rl", "name=t", f"runs_dir={runs}", *SIZE, *ONE, *RL, "data.rl.steps=4"],
        text=True,
        capture_output=True,
    )
    said = (done.stdout + done.stderr).strip().splitlines()
    checks(
        "RL goes on without adapters: refused",
        done.returncode == 2 and any("model.lora=" in line for line in said),
        said=said[-1:] or "",
    )


def one_gpu(checks: Checks, runs: Path) -> None:
    retool("prepare", runs, "t", *ONE)
    retool("sft", runs, "t", *ONE, *LORA)
    checks.part("SFT", lambda: check_sft(checks, runs))
    fork(runs, "t", "again", "sft", HALF)
    with ThreadPoolExecutor() as beside:  # the smallest of models: they share the GPU
        again = beside.submit(retool, "sft", runs, "again", *ONE, *LORA)
        retool("rl", runs, "t", *ONE, *LORA, *RL, "data.rl.steps=3")
        checks.part("SFT resumed", lambda: (again.result(), check_sft_resumed(checks, runs, "again")))
        checks.part("RL", lambda: check_rl(checks, runs, "t", (1, 2, 3)))
        fork(runs, "t", "resumed", "rl", 1)
        export = beside.submit(retool, "export", runs, "t", *ONE)
        checks.part(
            "RL resumed",
            lambda: (
                retool("rl", runs, "resumed", *ONE, *LORA, *RL, "data.rl.steps=2"),
                check_rl(checks, runs, "resumed", (2,)),
            ),
        )
        checks.part("export", lambda: (export.result(), check_export(checks, runs)))
    checks.part("refusal", lambda: check_refused(checks, runs))
    policy = runs / "t" / "export" / "policy"
    checks.part(
        "eval",
        lambda: (retool("eval", runs, "t", *ONE, f"policy={policy}", "problems=4", "k=1"), check_eval(checks, runs)),
    )


def two_gpus(checks: Checks, runs: Path) -> None:
    """TP=2 from the same adapters gives the same loss and gradients; RL under TP=2, and beside an engine's own GPU."""
    if not (runs / "t/sft/policy").exists():
        retool("prepare", runs, "t", *ONE)
        retool("sft", runs, "t", *ONE, *LORA)
    fork(runs, "t", "tp2", "sft", HALF)
    adapters_alone = ("verl.checkpoint.load_contents=[model]", f"data.sft.steps={HALF + 1}", "train.warmup_steps=0")

    def resharded() -> None:
        retool("sft", runs, "tp2", *TP2, *LORA, *adapters_alone)
        one, two = (metrics(runs / name / "sft")[HALF + 1] for name in ("t", "tp2"))
        gaps = {key: abs(two[key] - one[key]) / abs(one[key]) for key in ("train/loss", "train/grad_norm")}
        checks(
            "TP=2 from TP=1's adapters: loss and gradients of one step",
            gaps["train/loss"] < 0.005 and gaps["train/grad_norm"] < 0.05,
            **gaps,
        )

    checks.part("TP=2 SFT", resharded)
    for name, layout in (("rl-tp2", (*TP2, "parallel.rollout_tp=2")), ("own-engine", OWN_ENGINE)):
        (runs / name).mkdir(exist_ok=True)
        for part in ("data", "model", "sft"):
            (runs / name / part).symlink_to(runs / "t" / part)
        checks.part(
            name,
            lambda name=name, layout=layout: (
                retool("rl", runs, name, *layout, *LORA, *RL, "data.rl.steps=2"),
                check_rl(checks, runs, name, (1, 2)),
            ),
        )
