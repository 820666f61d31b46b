"""Moving a micro-batch's rows beside verl's own way: milliseconds of the host around one forward and backward pass.

    python -m benchmarks.train.rows

Each time: ids, labels and temperatures into Megatron's packed buffer, log-probabilities and entropies out of it, both
cut to the responses for the loss, and the gradient back to the buffer. No model: the GPU has nothing to do meanwhile
where the host has to wait for it, as verl does before each copy. That wait is not in these figures, because the two
ways run on the CPU here (docs/measured/rollout.md has verl's on a GPU). Both give the same bits
(tests/backends/test_packed_layout.py).
"""

import argparse
import os
import statistics
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from tensordict import TensorDict

from benchmarks import provenance
from retool_mcore.backends.megatron import packed_layout

RESULT = provenance.RESULTS / "rows.json"
PROMPT = 128  # tokens of each sequence


def nested(lengths: list[int], make) -> torch.Tensor:
    return torch.nested.as_nested_tensor([make(length) for length in lengths], layout=torch.jagged)


def batch(sequences: int, tokens: int, seed: int) -> TensorDict:
    """`sequences` of about `tokens` in all, lengths log-normal as ReTool's are."""
    made = torch.Generator().manual_seed(seed)
    drawn = torch.empty(sequences).log_normal_(0, 0.75, generator=made)
    lengths = [PROMPT + 1 + int(part) for part in drawn / drawn.sum() * (tokens - sequences * (PROMPT + 1))]

    def ids(length):
        return torch.randint(1000, (length,), generator=made)

    columns = {
        "input_ids": nested(lengths, ids),
        "prompts": nested([PROMPT] * sequences, ids),
        "responses": nested([length - PROMPT for length in lengths], ids),
    }
    return TensorDict(columns, batch_size=sequences)


def cycle(data: TensorDict, pack, unpack, expand, pad) -> torch.Tensor:
    """What verl's engine and loss do with one micro-batch; the gradient at the buffer."""
    ids = data["input_ids"]
    packed, params, _ = pack(ids)
    pack(ids.clone(), need_roll=True)
    pack(expand(torch.ones(len(data)), ids))
    output = torch.zeros(packed.shape, requires_grad=True)
    log_probs, entropy = (unpack(output, params, ids, len(data)) for _ in range(2))
    (pad(log_probs, data) + pad(entropy, data)).sum().backward()
    return output.grad


def theirs(data: TensorDict) -> torch.Tensor:
    return cycle(
        data,
        *(place.stock for place in (packed_layout.PACK, packed_layout.UNPACK, packed_layout.EXPAND, packed_layout.PAD)),
    )


def ours(data: TensorDict) -> torch.Tensor:
    layout, there = (
        packed_layout.PackedLayout(data, torch.device("cpu")),
        packed_layout.to_device(data, torch.device("cpu")),
    )
    return cycle(there, layout.pack, layout.unpack, layout.expand, layout.pad)


def milliseconds(way, data: TensorDict) -> float:
    start = time.perf_counter()
    way(data)
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[3, 10, 32, 100])
    parser.add_argument("--tokens", type=int, default=16384, help="of a micro-batch")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()

    from megatron.core import parallel_state

    head = provenance.made(("torch", "verl", "megatron-core", "tensordict"))
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    found = []
    for sequences in arguments.sequences:
        data = batch(sequences, arguments.tokens, seed=sequences)
        if not torch.equal(ours(data), theirs(data)):
            raise SystemExit("The two gradients differ.")
        times = [(milliseconds(ours, data), milliseconds(theirs, data)) for _ in range(arguments.repeat)]
        mine, stock = (statistics.median(column) for column in zip(*times, strict=True))
        found.append({"sequences": sequences, "ours_ms": mine, "verl_ms": stock, "ratio": stock / mine})
    table = Table("sequences", "verl, ms", "ours, ms", "ratio", title=f"{arguments.tokens:,} tokens a micro-batch")
    for row in found:
        table.add_row(str(row["sequences"]), f"{row['verl_ms']:.1f}", f"{row['ours_ms']:.1f}", f"{row['ratio']:.1f}")
    Console().print(table)
    provenance.write(arguments.out, head, {"tokens": arguments.tokens, "rows": found})


if __name__ == "__main__":
    main()
