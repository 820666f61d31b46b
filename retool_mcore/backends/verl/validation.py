"""Validation inside the run: verl's, on the problems that are held back, with figures that a checkpoint is chosen by.

verl's loop saves step N, pushes its weights and validates with them: what is logged at step N is checkpoint N's.
"""

import time
from pathlib import Path
from types import SimpleNamespace

from verl.utils import tensordict_utils

from retool_mcore.metrics.validation import problem_means, record, validation_metrics, worse_in_a_row
from retool_mcore.state import stop


class Validating:
    """What is ours in a validation; goes before verl's trainer. `config.retool.stop_after_worse`: as train's."""

    validating_s = 0.0  # of this attempt

    def fit(self, agent_loop_manager):
        self.began = time.monotonic()
        super().fit(agent_loop_manager)

    def on_step_end(self):
        super().on_step_end()
        if stop.requested(Path(self.config.retool.stage_dir)):
            self.config.trainer.test_freq = -1  # whoever asked has minutes; this step's checkpoint is never the best

    def _validate(self):
        """verl's, with requests that are all of step 0 (rollout/seeds.py).

        Training, which begins at step 1, shares no seed with them; validations share all (common random numbers): where
        two policies agree they write the same, so less of the difference between them is noise.
        """
        start, manager = time.monotonic(), self.agent_loop_manager

        def generate_sequences(batch):
            tensordict_utils.assign_non_tensor_data(batch, "global_steps", 0)
            manager.generate_sequences(batch)

        self.agent_loop_manager = SimpleNamespace(generate_sequences=generate_sequences)
        metrics = super()._validate()
        self.agent_loop_manager = manager
        assert "val/accuracy" in metrics, "verl sums its validation up elsewhere than it did"
        seconds = time.monotonic() - start
        self.validating_s += seconds
        return metrics | {"val/seconds": seconds, "val/share": self.validating_s / (time.monotonic() - self.began)}

    def _val_metrics_update(
        self, data_sources, sample_uids, reward_extra_infos_dict, sample_turns, expected_acc_counts
    ):
        """In the place of verl's, which resamples best@k and maj@k of every problem and variable 1000 times."""
        verdicts = reward_extra_infos_dict["acc"]
        means = problem_means(sample_uids, verdicts, expected_acc_counts)
        worse = worse_in_a_row(record(Path(self.config.retool.stage_dir), self.global_steps, means))
        limit = self.config.retool.stop_after_worse
        if limit is not None and worse >= limit and self.global_steps < self.total_training_steps:
            # With a checkpoint: this step's, else that of one step more, since vLLM has the device memory by now.
            unsaved = self.config.trainer.save_freq > 0 and self.saved_step != self.global_steps
            self.total_training_steps = self.global_steps + unsaved
            told = f"{worse} validations in a row were not better by more than a standard error"
            print(f"RL ends with step {self.total_training_steps}: {told} (train.stop_after_worse)")
        failed = sum(expected_acc_counts.values()) - sum(verdict is not None for verdict in verdicts)
        metrics = validation_metrics([source for source, _ in expected_acc_counts], means)
        return metrics | {"val/failed": failed, "val/worse_in_a_row": worse}
