"""One recorded step through the trainer again, without a rollout engine: the recorded trajectories take its place.

The step is the loop's own `update` (train/rl.py), from the checkpoint before it. Log-probabilities, advantages,
filters of samples, the audit and the update are computed anew. Groups that the rollout dropped are not in the records.
One step, nothing saved.
"""

import sys
from dataclasses import replace
from pathlib import Path

from omegaconf import OmegaConf, open_dict

from retool_mcore.backends.check import assert_adapters
from retool_mcore.errors import UserError
from retool_mcore.metrics.records import read_step
from retool_mcore.metrics.step import Total
from retool_mcore.recipes.mini_batches import Cut
from retool_mcore.rollout.samples import Sample
from retool_mcore.state import alarms
from retool_mcore.train.batch import Batch
from retool_mcore.train.rl import update
from retool_mcore.train.run import Run
from retool_mcore.train.settings import Settings


def main(config_path: str) -> None:
    from retool_mcore.backends.verl.engines import Engines, check_config, loggers, start_ray
    from retool_mcore.backends.verl.settings import verl_config

    assert_adapters()
    config, folder = OmegaConf.load(config_path), Path(config_path).parent
    verl = verl_config(config, folder)
    with open_dict(verl):
        verl.retool.alarms = alarms.IGNORED  # what the step did is to be seen, not answered
    check_config(verl)
    OmegaConf.resolve(verl)
    step, cfg = config.replay.step, Settings.of(verl)
    records = read_step(config.replay.records)
    if len(records) != cfg.batch * cfg.n:
        raise UserError(
            f"{config.replay.records} has {len(records)} trajectories, and a step of the configuration "
            f"{cfg.batch} x {cfg.n}: replay with the run's own data.rl.batch and data.rl.n."
        )
    if OmegaConf.select(verl, "actor_rollout_ref.rollout.enable_rollout_routing_replay"):
        raise UserError(
            "parallel.megatron.router_replay.mode=R3 needs the experts that the rollout engine chose, which no record "
            "holds: replay with parallel.megatron.router_replay.mode=R2."
        )
    start_ray(verl)
    engines = Engines(verl, total_updates=cfg.steps * cfg.updates, rollouts=False)
    if config.replay.checkpoint:
        engines.load(Path(config.replay.checkpoint))
    run = Run(replace(cfg, steps=step, save_every=-1), verl.retool, loggers(verl), step - 1, identity=None)
    try:
        replay(cfg, engines, run, records)
    finally:
        run.close()
        engines.close()


def replay(cfg: Settings, engines, run: Run, records: list[dict]) -> None:
    """Make the run's next step from its records, and record it."""
    cut = cfg.cut(engines.dp)
    for step in run.steps():
        total, batches = Total(), in_recorded_order(records, cut)
        for part, batch in enumerate(batches):
            total.add(update(cfg, engines, run, batch, cut, step, part), len(batch))
        run.record(step, batches, total.result(), engines)


def in_recorded_order(records: list[dict], cut: Cut) -> list[Batch]:
    """Return one batch for each update of the step, of `cut.rows` samples, in the order that the update had read them
    in.

    Sums of floats depend on that order. Records of a trainer that kept no places stay in the order of the file.
    """
    mini_batches = cut.rows // cut.size

    def place(record: dict) -> tuple[int, int]:
        return record.get("mini_batch", 0) // mini_batches, record.get("place", 0)

    ordered = sorted(records, key=place)
    parts = [ordered[first : first + cut.rows] for first in range(0, len(ordered), cut.rows)]
    return [Batch.of([(Sample.of_record(record), row_of(record)) for record in part]) for part in parts]


def row_of(record: dict) -> dict:
    """The row of the data set, as far as an update reads it."""
    return {
        "data_source": record["data_source"],
        "index": record["index"],
        "reward_model": {"ground_truth": record["ground_truth"]},
    }


if __name__ == "__main__":
    main(sys.argv[1])
