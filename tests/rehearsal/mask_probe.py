"""Run by torchrun: which tokens' changes reach a gradient in the rehearsal's layout, by tests/e2e/gradient_probe.py.

Arguments: a Hugging Face folder, the output file, the layout's words. Writes JSON as the probe does, of tokens at the
ends of policy's and interpreter's spans.
"""

import json
import sys
from pathlib import Path

import torch
from megatron.core import parallel_state
from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group

sys.path.append(str(Path(__file__).parents[1] / "e2e"))
import gradient_probe as probe

TOKENS = (5, 6, 10, 11, 15, 17, 22)


def main(model: str, output: str, *layout: str) -> None:
    initialize_global_process_group()
    engine = probe.build_engine(model, 8, 2, list(layout))
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, probe.VOCABULARY, (probe.PROMPT + len(probe.MASK),), generator=generator)
    advantages = torch.randn(len(probe.MASK), generator=generator)
    reference = probe.gradients(engine, advantages, ids, None)
    result = {"repeats": not probe.differs(reference, probe.gradients(engine, advantages, ids, None))}
    result |= {"policy": [bool(probe.MASK[token]) for token in TOKENS], "label": [], "advantage": []}
    for token in TOKENS:
        label = probe.gradients(engine, advantages, ids, probe.PROMPT + token - 1)
        other = advantages.clone()
        other[token] += 1.0
        result["label"].append(probe.differs(reference, label))
        result["advantage"].append(probe.differs(reference, probe.gradients(engine, other, ids, None)))
    if engine.is_mp_src_rank_with_outputs():
        Path(output).write_text(json.dumps(result))
    parallel_state.destroy_model_parallel()
    destroy_global_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
