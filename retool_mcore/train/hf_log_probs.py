"""Log-probabilities of a Hugging Face folder on export's probe batch, for comparison. A process of its own (export.py).

Arguments: the folder, the output file (torch.save of two (sequences, tokens, vocab) float32: as the model computes in
the dtype, and in float32), the probe as JSON, the dtype that it is trained in, which need not be the folder's.
"""

import json
import sys

import torch


def probe_batch(vocab_size: int, sequences: int, tokens: int) -> torch.Tensor:
    """Token ids (sequences, tokens) int64, the same on every rank and here."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, vocab_size, (sequences, tokens), generator=generator)


@torch.no_grad()
def main(folder: str, output: str, probe: str, dtype: str) -> None:
    from transformers import AutoModelForCausalLM  # export imports this module for `probe_batch` only

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    ids = probe_batch(model.config.vocab_size, **json.loads(probe))
    rounded = torch.log_softmax(model(input_ids=ids).logits.float(), dim=-1)
    exact = torch.log_softmax(model.float()(input_ids=ids).logits, dim=-1)
    torch.save((rounded, exact), output)


if __name__ == "__main__":
    main(*sys.argv[1:])
