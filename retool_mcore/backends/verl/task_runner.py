"""verl's task runner with our trainers: the process of RL in which the trainer lives."""

from pathlib import Path

from verl.trainer.main_ppo import TaskRunnerV1
from verl.trainer.ppo.v1 import trainer_base

from retool_mcore.backends.verl import private_sockets
from retool_mcore.backends.verl.separate import PartialTrainer, SeparateTrainer
from retool_mcore.backends.verl.trainer import RetoolTrainer, WorkerGroup
from retool_mcore.state import alarms, stop


class Runner(TaskRunnerV1.__ray_metadata__.modified_class):
    """verl's task runner, an actor on the head node, with our trainers in the place of its own.

    The modes keep their names: by them verl chooses its replay buffer and what it checkpoints, so a name of our own
    cannot be registered, and `register_trainer` refuses to replace one. For the worker group there is no registry.
    """

    trainer_class = RetoolTrainer

    def run(self, config):
        private_sockets.assert_in_force()
        ahead = {"colocate_async": PartialTrainer, "separate_async": SeparateTrainer}
        trainer_base.TRAINER_REGISTRY |= ahead | {"sync": self.trainer_class}
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
