"""RL with tools, the whole algorithm: prompts, episodes, rewards, filters, mini-batches, log-probabilities, advantages,
the mask audit, the update, the checkpoint, the push of the weights, validation.

`train` is the loop and `update` is one update; `main` puts the parts together. Where the episodes run and the tensors
lie does not matter here: `Engines` (backends/verl/engines.py) has Megatron and vLLM behind ten methods.
"""

import sys
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path

import torch
from omegaconf import OmegaConf

from retool_mcore.backends.check import assert_adapters
from retool_mcore.data.curriculum import load_curriculum, problem_name
from retool_mcore.data.prompt_stream import Asked, Prompts
from retool_mcore.metrics.audit import Fault, MaskAuditError, audit, not_finite, span_kinds, span_mask
from retool_mcore.metrics.charts import write_dashboard
from retool_mcore.metrics.step import Total, aggregated, probability_differences
from retool_mcore.recipes import advantages
from retool_mcore.recipes.fewest_calls import FewestCalls
from retool_mcore.recipes.filters import leave_out
from retool_mcore.recipes.importance import correct
from retool_mcore.recipes.mini_batches import Cut
from retool_mcore.rewards.otc import fewest_calls, tool_productivity
from retool_mcore.rewards.registry import find_reward
from retool_mcore.rewards.value import number
from retool_mcore.state import alarms, checkpoints, heartbeat, stop
from retool_mcore.state.policy_identity import PolicyIdentity
from retool_mcore.train.batch import Batch, shuffled
from retool_mcore.train.long_prompts import fitting_files
from retool_mcore.train.run import Run
from retool_mcore.train.settings import Settings
from retool_mcore.train.validation import Validation, validate


def train(cfg: Settings, engines, run: Run, prompts: Prompts, asked: list[Asked], problems: Validation | None) -> None:
    """Train to the last step. asked: what the checkpoint that the run goes on from had asked for and not taken.
    problems: to validate on.

    Raises StopRequested and alarms.Ended (state/), MaskAuditError, PushError and UserError.
    """
    groups = run.groups(engines.rollouts, prompts)
    cut = cfg.cut(engines.dp)  # of a batch into mini-batches, and of these over the data-parallel ranks
    with run.phase(heartbeat.PUSH):
        engines.push(run.start, verify=True)  # the rollout engines begin with weights of no meaning
    if problems and cfg.validate_first and run.start == 0:  # a resumed run has been validated before its first step
        with run.phase(heartbeat.VALIDATION):
            run.log.log(data=validate(cfg, engines.rollouts, run, problems, step=0), step=0)
    groups.ask_again(asked)
    for step in run.steps():
        before = prompts.copy(), groups.to_ask_again  # what a checkpoint of the step before would hold
        groups.ask(step)  # new prompts: with what is pending, 1 + staleness batches
        total, batches = Total(), []
        for part in range(cfg.updates):  # one update a step but for pipeline=async, where each has groups of its own
            saved = run.saves_trained(step - 1, engines, *before) if part == 0 else nullcontext()
            with run.phase(heartbeat.GENERATION, "gen"), saved:  # episodes, rewards, groups that teach something
                taken, metrics = groups.take(step, cfg.batch // cfg.updates)
            engines.pause()  # on shared devices the rollout engines give their memory back
            batch, balance = shuffled(taken, cut, cfg.seed, step)
            metrics |= balance | update(cfg, engines, run, batch, cut, step, part)
            total.add(metrics, len(batch))
            batches.append(batch)
        metrics = total.result()
        run.trained()  # from here on the policy is another
        ending = run.alarms.judge(step, metrics)
        if ending is None:
            if run.saves_at(step):  # before the rollout engines wake: then the device memory is their own
                run.save(step, engines, prompts, groups.to_ask_again)
            with run.phase(heartbeat.PUSH, "update_weights"):
                metrics |= engines.push(step, verify=run.verifies(step))
            run.timing["step"] = run.elapsed_s  # validation is not training
            if problems and run.validates(step):
                # Whoever asks for a stop now may not wait for the validation: the checkpoint would be lost with it.
                with run.phase(heartbeat.VALIDATION, "testing"), stop.watched(run.stage_dir, run.saves.recorded):
                    metrics |= validate(cfg, engines.rollouts, run, problems, step)
        late = run.record(step, batches, metrics | prompts.metrics(), engines)  # an alarm that needs the step's record
        if ending := ending or late:
            run.end(ending, step, prompts)


def update(cfg: Settings, engines, run: Run, batch: Batch, cut: Cut, step: int, part: int) -> dict[str, float]:
    """Update the policy, and the critic where there is one, on `batch`, the step's number `part`; returns metrics."""
    metrics: dict[str, float] = {}
    own, bypass = run.own_log_probs(step), cfg.log_probs_every > 1
    with run.phase("log-probabilities", "old_log_prob"):  # by the policy that the step began with
        if own:
            engines.log_probs(batch, part, cfg.updates)
            metrics |= log_prob_metrics(batch, cfg.recipe)
        if bypass:  # the loss takes the rollout engine's in every step; the trainer's own are for the metrics
            metrics |= bypass_log_probs(batch, own)
    if engines.has_reference:
        with run.phase("reference log-probabilities", "ref"):
            engines.reference_log_probs(batch)
    if engines.has_critic:
        with run.phase("values", "values"):
            engines.values(batch)
    with run.phase("advantages", "adv"):
        if cfg.recipe["group_reward"]["name"]:
            reward_groups(batch, cfg.recipe["group_reward"], run.fewest_calls, step)
        metrics |= leave_out_samples(batch, cfg.recipe["filters"])
        if not bypass and "rollout_log_probs" in batch:
            metrics |= correct_mismatch(batch, cfg.correction)
        estimate_advantages(batch, cfg.recipe)
        weigh_observations(batch, cfg.recipe)
    if engines.has_critic:
        with run.phase("critic update", "update_critic"):
            metrics |= engines.update_critic(batch)
    with run.phase("audit", "audit"):
        audited = audit_batch(batch, run, cut, step, part, predicted=cfg.recipe["observation_weight"] > 0)
        metrics |= {name: value for name, value in audited.items() if own or "mismatch/" not in name}
    if engines.has_critic and step < cfg.recipe["critic"]["warmup_steps"]:
        return metrics
    if run.alarms.skips(metrics):
        return metrics | {"actor/skipped_updates": 1.0}
    with run.phase(heartbeat.UPDATE, "update_actor"):
        try:
            return metrics | engines.update(batch)
        except MaskAuditError as error:
            raise with_its_trajectory(error, batch, run) from error


def log_prob_metrics(batch: Batch, recipe) -> dict[str, float]:
    """The policy's entropy, and how far the rollout engine's probabilities are from the trainer's."""
    mask = batch.padded("response_mask")
    entropy = aggregated(batch.padded("entropy"), mask, recipe["loss_aggregation"], recipe["loss_scale"])
    metrics = {"actor/entropy": entropy.item()}
    if "rollout_log_probs" in batch:
        old, rollout = batch.padded("old_log_probs"), batch.padded("rollout_log_probs")
        metrics |= probability_differences(old, rollout, mask)
    return metrics


def bypass_log_probs(batch: Batch, own: bool) -> dict[str, float]:
    """Make the rollout engine's log-probabilities the old ones; where the trainer's `own` pass was made, they move to
    the column trainer_log_probs, and the metrics of the two are returned."""
    metrics: dict[str, float] = {}
    if own:
        old, rollout, mask = (batch.padded(name) for name in ("old_log_probs", "rollout_log_probs", "response_mask"))
        _, _, metrics = correct(old, rollout, mask, {"rollout_is": None, "rollout_rs": None})
        batch["trainer_log_probs"] = batch["old_log_probs"]
    batch["old_log_probs"] = batch["rollout_log_probs"]
    return metrics


def reward_groups(batch: Batch, group_reward, memory: FewestCalls, step: int) -> None:
    """Replace each sample's reward by one that depends on its whole group (OTC-GRPO, arXiv 2504.14870); the punishment
    of overlong responses stays. `memory`: the fewest calls with which each problem was answered right before."""
    reward = find_reward(group_reward["name"])
    rows = defaultdict(list)
    for row, sample in enumerate(batch.samples):
        rows[sample.group].append(row)
    minima: dict[str, int | None] = {}
    for group in rows.values():
        samples = [batch.samples[row] for row in group]
        problem = problem_name(batch.rows[group[0]]["data_source"], int(batch.rows[group[0]]["index"]))
        accs, calls = [float(s.outcome["acc"]) for s in samples], [len(s.notes["calls"]) for s in samples]
        rewards = reward(accs, calls, fewest=memory.get(problem), **group_reward["args"])
        values = [number(value, f"the group reward {group_reward['name']}") for value in rewards]
        for row, sample, value in zip(group, samples, values, strict=True):
            batch.rewards[row] = value + float(sample.outcome["overlong"])
        minima[problem] = fewest_calls(accs, calls, minima.get(problem, memory.get(problem)))
    memory.update(step, minima)


def leave_out_samples(batch: Batch, filters) -> dict[str, float]:
    """Take what the sample filters dropped out of the loss. Its reward stays in its group's baseline."""
    mask, metrics = leave_out(batch.padded("response_mask"), batch.drops, filters["samples"])
    batch["response_mask"] = batch.flat(mask)
    episodes = [batch.samples[row] for row in batch.firsts]
    accs = [float(sample.outcome["acc"]) for sample in episodes]
    productivity = tool_productivity(accs, [len(sample.notes["calls"]) for sample in episodes])
    return metrics | ({} if productivity is None else {"reward/tool_productivity": productivity})


def correct_mismatch(batch: Batch, correction) -> dict[str, float]:
    """Weigh and reject tokens by the ratio of the trainer's policy to the rollout engine's."""
    old, rollout, mask = (batch.padded(name) for name in ("old_log_probs", "rollout_log_probs", "response_mask"))
    weights, kept, metrics = correct(old, rollout, mask, correction)
    if weights is not None:
        batch["is_weights"] = batch.flat(weights)
    batch["response_mask"] = batch.flat(kept)
    return metrics


def estimate_advantages(batch: Batch, recipe) -> None:
    """Write the columns advantages and returns, by the recipe's estimator."""
    mask, rewards, name = batch.padded("response_mask"), batch.rewards, recipe["advantage"]
    if name == "gae":
        lengths, gamma, lam = torch.from_numpy(batch.lengths), recipe["gamma"], recipe["lambda"]
        values, returns = advantages.gae(rewards, mask, batch.padded("values"), lengths, gamma=gamma, lam=lam)
    elif name == "grpo":
        by_std = recipe["normalise_by_std"]
        values = returns = advantages.grpo(rewards, mask, batch.groups, by_std=by_std, firsts=batch.first_of_row)
    else:
        estimate = {"rloo": advantages.rloo, "reinforce_plus_plus_baseline": advantages.reinforce_plus_plus_baseline}
        values = returns = estimate[name](rewards, mask, batch.groups, batch.first_of_row)
    batch["advantages"], batch["returns"] = batch.flat(values), batch.flat(returns)


def weigh_observations(batch: Batch, recipe) -> None:
    """Set weights for the loss "retool" (backends/verl/losses.py), which reads values outside the mask: alpha on
    observations of samples that count, else 0. GAE whitens the advantages of all tokens, which leaves values other than
    0 there."""
    alpha = recipe["observation_weight"]
    if recipe["policy_loss"] != "retool" or not (alpha > 0 or recipe["advantage"] == "gae"):
        return
    counts = batch.of_tokens(torch.tensor([0.0 if drop else alpha for drop in batch.drops]))
    batch["advantages"] = torch.where(batch["response_mask"] == 0, counts, batch["advantages"])


def audit_batch(batch: Batch, run: Run, cut: Cut, step: int, part: int, *, predicted: bool) -> dict[str, float]:
    """Compare what the update is about to read with what was sampled; write the column span_kind, by which the workers
    audit the gradient itself. Adds the batch's records to the run's. Raises MaskAuditError."""
    columns = batch.for_audit()
    records = batch.records(step, columns)
    for record in records:
        place = record["place"]
        number = batch.layout.mini_batches[place] if batch.layout else cut.mini_batch(place)
        record["mini_batch"] = part * cut.rows // cut.size + number
    first = len(run.records)
    run.records += records
    spans = span_mask(columns, records)
    metrics, fault = audit(columns, records, spans)
    if fault is not None:
        raise run.refused(fault, first + fault.row)
    assert not isinstance(spans, Fault)  # else the audit has it
    if (broken := not_finite(columns, records, spans[0])) is not None:
        print(run.recorder.not_finite(records, broken), flush=True)
    batch["span_kind"] = torch.from_numpy(span_kinds(spans[0], predicted))
    return metrics


def with_its_trajectory(error: MaskAuditError, batch: Batch, run: Run) -> MaskAuditError:
    """The error of a worker's audit, with the trajectory on the disk where the batch has it."""
    if not error.key.isdecimal():
        return error
    row = int(error.key)  # the workers know a sample by its place in the batch
    return run.refused(Fault(error.what, row, error.token), len(run.records) - len(batch) + row, error.where)


def open_traces(settings, tokenizer):
    """Return where episodes are traced to (train/traces.py); None where they are not."""
    if settings is None:
        return None
    from retool_mcore.train.traces import Traces  # OpenTelemetry, which only a traced run needs

    return Traces(settings, tokenizer)


def main(config_path: str) -> None:
    from retool_mcore.backends.verl.engines import Engines, check_config, loggers, start_ray
    from retool_mcore.backends.verl.settings import verl_config

    assert_adapters()
    # More threads wait for each other while engines keep the cores busy, and the last digit of a sum depends on them.
    torch.set_num_threads(1)
    config = OmegaConf.load(config_path)
    stage_dir = Path(config.run_dir) / "rl"
    last = checkpoints.repair(stage_dir / "checkpoints")
    start = checkpoints.step_of(last) if last else 0
    print(f"RL starts {'from ' + last.name if last else 'at step 0'}")
    for key in ("train_files", "val_files"):
        files = config.verl.data[key]
        config.verl.data[key] = fitting_files(config, files, config.init_from, stage_dir / "prompts" / key)
    verl = verl_config(config, stage_dir)
    check_config(verl)
    OmegaConf.resolve(verl)
    cfg = Settings.of(verl)
    curriculum = load_curriculum(verl.retool.curriculum, verl.data.train_files, verl.data.seed)
    if curriculum.problems:
        print(f"curriculum: RL draws from {len(curriculum.problems)} problems")
    prompts = Prompts(verl.data.train_files, verl.data.seed, curriculum)
    asked = prompts.load(last, alarms.left_out(stage_dir, start)) if last else []
    problems = None
    if cfg.validate_every > 0 or cfg.validate_first:
        files = [verl.data.val_files, *([verl.retool.evaluation.files] if cfg.evaluation else [])]
        problems = Validation(*(Prompts(one, verl.data.seed, curriculum) for one in files))
    (stage_dir / "ALARM").unlink(missing_ok=True)
    write_dashboard("rl", config.train.loggers)
    start_ray(verl)
    engines = Engines(verl, total_updates=cfg.steps * cfg.updates)
    if last:
        heartbeat.beat(heartbeat.TRAINER, heartbeat.LOAD)
        engines.load(last)
    identity = PolicyIdentity(verl, start) if cfg.save_every > 0 else None
    run = Run(cfg, verl.retool, loggers(verl), start, identity, open_traces(verl.retool.traces, engines.tokenizer))
    try:
        train(cfg, engines, run, prompts, asked, problems)
    except stop.StopRequested as stopped:
        stop.honour(stage_dir, stopped.step)
        sys.exit(stop.EXIT_CODE)
    except alarms.Ended as ended:
        alarms.honour(stage_dir, ended)
        sys.exit(alarms.EXIT_CODE)
    finally:
        run.close()
        engines.close()
    policy = checkpoints.link_policy(stage_dir)
    print(f"RL policy: {policy or f'none was saved, as train.save_every={config.train.save_every} asks'}")


if __name__ == "__main__":
    main(sys.argv[1])
