"""All checks of a stage, cheap ones first; the first that fails ends the run with its sentence."""

import asyncio
import os
from importlib.util import find_spec
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from retool_mcore import resources, temporary
from retool_mcore.config import STAGE_POLICIES
from retool_mcore.config import check as check_values
from retool_mcore.data.formats import TOOL_NAME
from retool_mcore.data.schema import check_rl, check_sft
from retool_mcore.data.validation_sets import validation_sets
from retool_mcore.errors import UserError
from retool_mcore.planner import parallel, verdict
from retool_mcore.planner.settings import checked_layout
from retool_mcore.planner.shape import Model, known, read_json
from retool_mcore.preflight import data, disk, listeners, machine, memory, relations
from retool_mcore.preflight.agents import check_program
from retool_mcore.preflight.architecture import check_architecture
from retool_mcore.preflight.model import check_fp8, check_lora, check_tokenizer, find_folder, read_model
from retool_mcore.preflight.trackers import check_receiver, check_trackers
from retool_mcore.recipes.check import check_arguments, check_needs
from retool_mcore.rewards.scoring import right_from
from retool_mcore.rewards.verdict import TESTS
from retool_mcore.sandbox.create import create_sandbox
from retool_mcore.tools.toolbox import CODE, toolbox_of

CAPABILITY = {"A100": 8.0, "H100": 9.0, "H200": 9.0}
MODEL_ADVICE = "run `retool prepare` first, or give the folder of a Hugging Face model"


def check(stage: str, config: DictConfig) -> None:
    """Refuse a run of `stage` that cannot work. Takes no GPU, starts no engine; seconds.

    Raises UserError with one sentence. `config` is the stage's resolved configuration (config.compose).
    """
    check_values(stage, OmegaConf.to_container(config))  # a replay's is not composed
    temporary.folder()
    machine.check_disk(config.run_dir, needed_bytes=machine.MIN_DISK_BYTES)
    if stage == "prepare":
        return
    check_trackers(OmegaConf.select(config, "train.loggers") or (), Path(config.run_dir) / stage)
    device, gpus = config.parallel.device, config.parallel.gpus_per_node
    gpu_count = len(machine.gpu_memory_bytes()) if device == "cuda" else 0
    machine.check_devices(device, gpus_per_node=gpus, gpus_found=gpu_count)
    if config.parallel.device == "cpu":
        machine.check_memory(resources.available_memory_bytes())
    relations.check(stage, config)
    checks = {"sft": check_sft_stage, "rl": check_rl_stage, "eval": check_eval_stage, "export": check_export_stage}
    checks[stage](config)
    if (line := listeners.line(stage, config)) is not None:
        print(line, flush=True)


def check_sft_stage(config: DictConfig) -> None:
    train, rollout = config.train, config.rollout
    data.check_template(config.data.prompt, rollout.format)
    keys = ("sft_train_files", "sft_validation_files")
    files = {key: data.check_files(f"data.{key}", config.data[key], check_sft) for key in keys}
    for paths in files.values():
        data.check_prepared_template(paths, rollout.format, config.data.prompt)
    rows = data.count_rows(files["sft_train_files"])
    data.check_fills_a_batch("data.sft_train_files", rows=rows, batch=train.batch)
    there = train.epochs * (rows // train.batch)
    parallel.check_schedule(steps=train.steps or there, warmup_steps=train.warmup_steps)

    weights = reads_weights(config)
    model = read_policy(config.init_from, "init_from", rollout, advice=MODEL_ADVICE, weights=weights)
    check_architecture(model, vanilla_mbridge=config.parallel.megatron.vanilla_mbridge)
    dp = check_trainer_layout(config, model)
    parallel.check_sft_length(max_length=train.max_length, max_positions=model.max_positions)
    check_gpu_memory(config, model, dp)
    check_checkpoints("sft", config, model)
    tell_plan(config, model)

    from retool_mcore.data.policy_format import load_format  # for the last checks: transformers takes seconds

    fmt = load_format(config, model.folder)
    for key, paths in files.items():
        data.check_sft_prompts(key, paths, fmt)


def check_rl_stage(config: DictConfig) -> None:
    train = config.train
    check_program(config)
    if config.trace.backend == "otlp":
        check_receiver(os.environ)
    check_rollout_devices(config)
    sets = validation_sets(config) if "held_back_files" in config.data else []  # an older run, replayed, has none
    keys = ["train_files", *(validation_set.key.removeprefix("data.") for validation_set in sets)]
    files = check_prompts(config, tuple(key for key in keys if key in config.data))
    for paths in files.values():
        data.check_ability(paths, config.recipe)
        data.check_answers(paths, config.recipe)
    data.check_call_style(config.data.prompt, config.recipe)
    data.check_fills_a_batch("data.train_files", rows=data.count_rows(files["train_files"]), batch=train.batch)
    data.check_curriculum(config.data.get("curriculum", {}), files["train_files"], config.seed, batch=train.batch)
    if "held_back_files" in files:
        data.check_validation(train, files, config.data.validation_files)

    critic = config.recipe.advantage == "gae"
    if not reads_weights(config) and train.save_every > 0:
        # Of a bridge that has loaded nothing mbridge cannot save anything.
        raise UserError(
            f"model.init={config.model.init} is for measurements and keeps no checkpoint: add train.save_every=-1."
        )
    weights = reads_weights(config) or critic  # verl's engine of a critic knows no other start
    advice = "run `retool sft` first, or give a folder"
    model = read_policy(config.init_from, "init_from", config.rollout, advice, weights)
    check_architecture(model, vanilla_mbridge=config.parallel.megatron.vanilla_mbridge)
    dp = check_trainer_layout(config, model)
    check_rollout(config, model)
    check_fp8(config, model)
    check_bucket(config, model)
    shared = bool(config.pipeline.hybrid)
    check_gpu_memory(config, model, dp, critic=critic, reference=config.recipe.kl_loss, engine=shared)
    check_checkpoints("rl", config, model)
    tell_plan(config, model)
    rows = check_prompt_lengths(config, model, files, check_tools(config))["data.train_files"]
    data.check_fills_a_batch("data.train_files", rows=rows, batch=train.batch)


def check_eval_stage(config: DictConfig) -> None:
    if config.answer == TESTS:
        raise UserError(
            "`retool eval` runs no repositories: reward/accuracy of `retool rl` is the share of trajectories whose "
            "tests pass."
        )
    check_arguments("reward", config.recipe.reward, given=1)
    model = read_named_policy(config)
    check_rollout(config, model)
    tools = check_tools(config)
    data.check_template(config.data.prompt, config.rollout.format)
    if config.get("prepare") and not all(map(os.path.isfile, data.listed(config.data.validation_files))):
        return  # they are read when the stage begins, and checked then (runner/launch.py)
    files = check_prompts(config, ("validation_files",))
    graded = {**OmegaConf.to_container(config.recipe, resolve=True), "answer": config.answer}
    if right_from(graded) is not None:  # the reward decides
        check_needs({**OmegaConf.to_container(config, resolve=True), "recipe": graded})
    for paths in files.values():
        data.check_ability(paths, graded)
        data.check_answers(paths, graded)
    check_prompt_lengths(config, model, files, tools)


def check_chat(config: DictConfig) -> None:
    """The policy of `retool chat`, its engine and its tools; config: of an evaluation, whose data are not read."""
    check_rollout(config, read_named_policy(config))
    check_tools(config)
    data.check_template(config.data.prompt, config.rollout.format)


def check_export_stage(config: DictConfig) -> None:
    if config.policy not in STAGE_POLICIES:
        raise UserError(
            f"policy={config.policy}: only the checkpoints of sft and rl can be exported: {', '.join(STAGE_POLICIES)}."
        )
    model = read_named_policy(config)
    check_architecture(model, vanilla_mbridge=config.parallel.megatron.vanilla_mbridge)
    if config.probe.tokens > model.max_positions:
        raise UserError(
            f"probe.tokens={config.probe.tokens} exceeds the model's {model.max_positions} positions: lower it."
        )
    check_trainer_layout(config, model)
    disk.check_export(config, model.parameters)


def check_prompts(config: DictConfig, keys: tuple[str, ...]) -> dict[str, list[Path]]:
    """The RL files under data.KEY of each key: there, in the schema, and written for the rollout's format."""
    data.check_template(config.data.prompt, config.rollout.format)
    files = {key: data.check_files(f"data.{key}", config.data[key], check_rl) for key in keys}
    asked = None if config.get("prepare") else config.data.prompt  # else the files are written anew where it changed
    for paths in files.values():
        data.check_prepared_template(paths, config.rollout.format, asked)
    return files


def reads_weights(config: DictConfig) -> bool:
    """Whether the policy starts from a folder's weights."""
    return config.model.init == "checkpoint"


def read_policy(name: str | None, key: str, rollout: DictConfig, advice: str, weights: bool = True) -> Model:
    """The model that config key `key` names, checked with its tokenizer and, if they will be read, its weights.

    advice: what to do when there is no such folder.
    """
    if name is None:
        raise UserError("No model is named: add model.path=FOLDER, or a choice such as model=qwen2.5-7b or model=tiny.")
    model = read_model(find_folder(str(name), key=key, advice=advice), weights=weights)
    check_tokenizer(model, rollout.format, rollout.get("chat_template"))
    return model


def read_named_policy(config: DictConfig) -> Model:
    """The policy that eval or export names: init, a word of STAGE_POLICIES or a folder."""
    if config.policy == "init":
        advice = MODEL_ADVICE
    elif config.policy in STAGE_POLICIES:
        stage, _, best = config.policy.partition("-")
        advice = f"run `retool {stage}` first" + (" with train.eval_every and train.keep_best set" if best else "")
    else:
        advice = f"give init, {', '.join(STAGE_POLICIES)} or the folder of a Hugging Face model"
    return read_policy(config.policy_path, f"policy={config.policy}", config.rollout, advice)


def check_trainer_layout(config: DictConfig, model: Model) -> int:
    layout = config.parallel
    if "train" in config and OmegaConf.select(config, "model.lora.rank"):
        check_lora(config, model)
    replay = OmegaConf.select(layout, "megatron.router_replay.mode") or "disabled"
    if replay != "disabled" and not model.experts:
        raise UserError(f"parallel.megatron.router_replay.mode={replay} is of experts, and {model.folder} has none.")
    parallel.check_dtype(device=layout.device, dtype=config.model.dtype)
    if layout.device == "cuda":
        check_attention(layout)
    return checked_layout(model, layout).dp


def check_attention(layout: DictConfig) -> None:
    here = machine.compute_capabilities()
    named = CAPABILITY.get(str(layout.gpu).partition("-")[0])
    backend = layout.megatron.override_transformer_config.attention_backend
    installed = find_spec("flash_attn") is not None if here else None
    parallel.check_attention(backend, capability=min(here, default=named), installed=installed)


def check_rollout_devices(config: DictConfig) -> None:
    layout = config.parallel
    in_a_job = os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") == "1"  # cluster/job.py has counted its nodes
    if "RAY_ADDRESS" in os.environ or in_a_job:
        devices, source = None, "Ray"
    elif layout.device == "cuda":
        devices, source = layout.nodes * len(machine.gpu_memory_bytes()), "nvidia-smi lists"
    else:
        devices, source = layout.ray.num_gpus, "parallel.ray.num_gpus gives"
    machine.check_rollout_devices(config.pipeline, layout, devices=devices, source=source)


def check_gpu_memory(config: DictConfig, model: Model, dp: int, **models: bool) -> None:
    """`models`: the others next to the policy, as in memory.check_update."""
    sizes = machine.gpu_memory_bytes() if config.parallel.device == "cuda" else []
    if sizes and None not in sizes:
        memory.check_update(config.parallel, model.folder, dp=dp, gpu_bytes=min(sizes), config=config, **models)


def tell_plan(config: DictConfig, model: Model) -> None:
    """The planner's word, in two or three lines; none on CPUs and of a model that it does not know."""
    if config.parallel.device == "cuda" and (shape := known(model.folder)) is not None:
        for line in verdict.lines(config, machine.gpu_names(), shape):
            print(f"plan: {line}", flush=True)


def check_rollout(config: DictConfig, model: Model) -> None:
    """Token limits and the engine's layout."""
    rollout, layout = config.rollout, config.parallel
    limits = {name: rollout[name] for name in ("max_prompt_tokens", "max_response_tokens")}
    parallel.check_lengths(**limits, max_positions=model.max_positions)
    parallel.check_rollout_layout(model, gpus_per_node=layout.gpus_per_node, rollout_tp=layout.rollout_tp)


def check_bucket(config: DictConfig, model: Model) -> None:
    """Through shared memory, as on CPUs, verl pushes no tensor that its bucket does not hold."""
    sizes = read_json(model.folder / "config.json")
    if config.parallel.device == "cpu" and config.pipeline.hybrid and "hidden_size" in sizes:
        rows = max(model.vocab, sizes.get("intermediate_size") or 0)
        largest = rows * sizes["hidden_size"] * (4 if config.model.dtype == "float32" else 2)
        parallel.check_weight_bucket(config.parallel.rollout.weight_bucket_mb, largest_bytes=largest)


def check_checkpoints(stage: str, config: DictConfig, model: Model) -> None:
    """Room on the disk for the checkpoints to come, and node memory for what is not on the GPUs."""
    disk.check_checkpoints(stage, config, model.parameters)
    needs = memory.node_needs(config, model.folder)
    memory.check(needs, memory=resources.available_memory_bytes())
    if config.train.save_every > 0:
        machine.tell_write_time(config.run_dir, disk.checkpoint_bytes(config, model.parameters))


def check_tools(config: DictConfig) -> list[dict] | None:
    """The run's tools can be made, the format can list them, and where one of them is code the sandbox answers.

    Returns the schemas that every prompt lists, None for the format's own.
    """
    if config.rollout.format == "none" and [entry.path for entry in config.toolbox.use] == [CODE]:
        return None
    toolbox = toolbox_of(config, create_sandbox(config.sandbox))
    asyncio.run(toolbox.close())
    if toolbox.text_only or config.rollout.format == "none":
        return None
    if not toolbox.code_only and config.rollout.format != "hermes":
        raise UserError(
            f"rollout.format={config.rollout.format} knows the code interpreter alone, and toolbox.use has other "
            "tools: set rollout.format=hermes, or toolbox=code."
        )
    if TOOL_NAME in toolbox.tools:
        machine.check_sandbox(config.sandbox)
    return toolbox.schemas or None


def check_prompt_lengths(
    config: DictConfig, model: Model, files: dict[str, list[Path]], tools: list[dict] | None = None
) -> dict[str, int]:
    """Check the prompts, and a chat template that a rollout can append to; returns how many remain of each key."""
    from retool_mcore.data.policy_format import load_format  # for the last checks: transformers takes seconds

    fmt = load_format(config, model.folder)
    named = {f"data.{key}": paths for key, paths in files.items()}
    for key, paths in named.items():
        data.tell_special_tokens(key, paths, fmt)
    limit, drop = config.rollout.max_prompt_tokens, bool(config.data.get("drop_long_prompts"))
    return data.check_prompt_lengths(named, fmt, tools or fmt.tools, max_prompt_tokens=limit, drop=drop)
