"""`correction=bypass`: the policy loss takes the rollout engine's log-probabilities in every step. The pass that the
trainer makes for its own, every so many steps, is for the metrics."""

import transfer_queue
from verl.protocol import DataProto
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch

TRAINERS = "trainer_log_probs"  # the column of a step with a pass that holds the trainer's own
_COLUMNS = ("old_log_probs", "rollout_log_probs", "response_mask")


def restore_engines(batch, correction) -> dict[str, float]:
    """Put the rollout engine's log-probabilities back into `old_log_probs` of a batch (KVBatchMeta) for which the
    trainer has just computed its own; these move to the column TRAINERS. Returns verl's metrics `rollout_corr/` of the
    two. correction: `algorithm.rollout_correction`.
    """
    place = {"keys": batch.keys, "partition_id": batch.partition_id}
    data = transfer_queue.kv_batch_get(**place, select_fields=list(_COLUMNS))
    _, metrics = compute_rollout_correction_and_add_to_batch(DataProto(batch=data.to_padded_tensor()), correction)
    data[TRAINERS] = data["old_log_probs"]
    data["old_log_probs"] = data["rollout_log_probs"]
    transfer_queue.kv_batch_put(**place, fields=data.select(TRAINERS, "old_log_probs"))
    return metrics
