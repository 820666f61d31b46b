"""Adam's state from the start: Megatron loads a checkpoint into it, and torch's Adam makes it at its first step."""

import torch
from megatron.core.optimizer import MegatronOptimizer, distrib_optimizer


def begin(optimizer: MegatronOptimizer) -> None:
    """Make the moments and step counts where Megatron's Adam is torch's; Transformer Engine's and Apex's have them."""
    if distrib_optimizer.HAVE_APEX_OR_TE:
        return
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if isinstance(part, distrib_optimizer.DistributedOptimizer):
            for group in part.optimizer.param_groups:
                for weight in group["params"]:
                    moments = dict(exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
                    part.optimizer.state[weight] = dict(step=torch.tensor(0.0), **moments)
