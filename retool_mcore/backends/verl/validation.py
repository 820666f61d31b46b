"""Validation inside the run: verl's, on the problems that are held back, with figures that a checkpoint is chosen by.

verl's loop saves step N, pushes its weights and validates with them: what is logged at step N is checkpoint N's.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.v1.trainer_base import create_rl_dataset
from verl.utils import tensordict_utils
from verl.utils.dataset.rl_dataset import collate_fn

from retool_mcore.backends.verl.agent_loop_worker import SAMPLING
from retool_mcore.data.validation_sets import EVALUATION
from retool_mcore.metrics.validation import problem_means, record, set_metrics, validation_metrics, worse_in_a_row
from retool_mcore.rewards.equivalence import equivalent
from retool_mcore.state import stop


class Resampled:
    """Batches of a data loader whose rows are sampled `samples` times with `sampling`, whatever verl's section says."""

    def __init__(self, batches: Iterable[dict], samples: int, sampling: Mapping[str, float]):
        self.batches, self.samples, self.sampling = batches, samples, dict(sampling)

    def __iter__(self) -> Iterator[dict]:
        for batch in self.batches:
            rows = len(batch["raw_prompt"])
            sampling = np.empty(rows, dtype=object)
            sampling[:] = [self.sampling] * rows
            # verl's word for a row's own number of samples (trainer/ppo/v1/agent_loop_tq.py).
            yield batch | {"__rollout_n__": np.array([self.samples] * rows, dtype=object), SAMPLING: sampling}


class Validating:
    """What is ours in a validation; goes before verl's trainer. `config.retool.stop_after_worse`: as train's;
    `evaluation`: files, samples and sampling of the evaluation set, None where it is not validated on."""

    validating_s = 0.0  # of this attempt
    evaluation: Iterable[dict] | None = None  # batches of the evaluation set
    validated = ""  # the set under way; "": the held-back problems

    def _init_dataloader(self):
        super()._init_dataloader()
        if (found := self.config.retool.get("evaluation")) is not None:
            data = self.config.data
            rows = create_rl_dataset(found.files, data, self.tokenizer, self.processor, is_train=False)
            batches = StatefulDataLoader(
                dataset=rows,
                batch_size=len(rows),
                num_workers=data.dataloader_num_workers,
                shuffle=False,
                collate_fn=collate_fn,
            )
            self.evaluation = Resampled(batches, found.samples, found.sampling)

    def fit(self, agent_loop_manager):
        self.began = time.monotonic()
        if self.config.trainer.val_before_train and self.global_steps > 0:
            self.config.trainer.val_before_train = False  # a resumed run has been validated before its first step
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
        # Whoever asks for a stop now may not wait for the validation: the step's checkpoint would be lost with it.
        with stop.watched(Path(self.config.retool.stage_dir), self._mark_saved):
            metrics = super()._validate()
            assert "val/accuracy" in metrics, "verl sums its validation up elsewhere than it did"
            if self.evaluation is not None:
                held_back, self.val_dataloader = self.val_dataloader, self.evaluation
                self.validated = EVALUATION
                metrics |= super()._validate()
                self.val_dataloader, self.validated = held_back, ""
        self.agent_loop_manager = manager
        seconds = time.monotonic() - start
        self.validating_s += seconds
        return metrics | {"val/seconds": seconds, "val/share": self.validating_s / (time.monotonic() - self.began)}

    def _val_metrics_update(
        self, data_sources, sample_uids, reward_extra_infos_dict, sample_turns, expected_acc_counts
    ):
        """In the place of verl's, which resamples best@k and maj@k of every problem and variable 1000 times."""
        verdicts = reward_extra_infos_dict["acc"]
        if self.validated:
            answers = reward_extra_infos_dict["pred"]
            return set_metrics(self.validated, sample_uids, verdicts, answers, expected_acc_counts, same=equivalent)
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
