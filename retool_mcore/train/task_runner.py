"""verl's task runner with our trainers: the process of RL in which the trainer lives."""

from pathlib import Path

from verl.trainer.main_ppo import TaskRunnerV1
from verl.trainer.ppo.v1 import trainer_base

from retool_mcore import stop
from retool_mcore.train import alarms
from retool_mcore.train.separate import SeparateTrainer
from retool_mcore.train.trainer import RetoolTrainer, WorkerGroup


class Runner(TaskRunnerV1.__ray_metadata__.modified_class):
    """verl's task runner, an actor on the head node, with our trainers in the place of its own.

    The modes keep their names: by them verl chooses its replay buffer and what it checkpoints, so a name of our own
    cannot be registered, and `register_trainer` refuses to replace one. For the worker group there is no registry.
    """

    trainer_class = RetoolTrainer

    def run(self, config):
        trainer_base.TRAINER_REGISTRY |= {"sync": self.trainer_class, "separate_async": SeparateTrainer}
        trainer_base.RayWorkerGroup = WorkerGroup
        try:
            super().run(config)
        except stop.StopRequested as stopped:
            stop.honour(Path(config.retool.stage_dir), stopped.step)
        except alarms.Ended as ended:
            alarms.honour(Path(config.retool.stage_dir), ended)
        finally:
            if self.trainer is not None:
                self.trainer.observer.close()
