"""What vLLM's waking up costs before a weight push: seconds by bytes, for weights and for the KV cache.

    python benchmarks/wake.py OUT.json 7b 41        # shape (scripted_policy.py's), GB of KV cache; one GPU

The engine is in this process (no Ray, no verl, dummy weights), so that only the memory's own cost is seen: vLLM's
CuMemAllocator gives physical memory back when it sleeps and asks the driver for it anew, one call an allocation. The
alternative in the same run is an engine that keeps its weights: a copy of the same bytes inside the device's memory.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

TAGS = ("weights", "kv_cache")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def timed(function, *args) -> float:
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    function(*args)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(shape: str, kv_gb: float, repeats: int) -> dict:
    import torch
    from reshard import facts
    from scripted_policy import SHAPES, make_config, make_tokenizer
    from vllm import LLM
    from vllm.device_allocator import cumem

    folder = Path(tempfile.mkdtemp())
    tokenizer, _ = make_tokenizer(SHAPES[shape][-1])
    tokenizer.save_pretrained(folder)
    make_config(shape, tokenizer).save_pretrained(folder)
    start = time.perf_counter()
    engine = LLM(
        model=str(folder),
        load_format="dummy",
        dtype="bfloat16",
        enforce_eager=True,
        enable_sleep_mode=True,
        max_model_len=2304,
        max_num_seqs=16,
        gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=int(kv_gb * 1e9),
    )
    started = time.perf_counter() - start
    allocator = cumem.CuMemAllocator.get_instance()
    held = {tag: [d.handle[1] for d in allocator.pointer_to_data.values() if d.tag == tag] for tag in TAGS}
    inside = {"s": 0.0}
    stock = cumem.create_and_map

    def counted(handle):
        begin = time.perf_counter()
        stock(handle)
        inside["s"] += time.perf_counter() - begin

    cumem.create_and_map = counted
    rounds = []
    for _ in range(repeats + 1):
        one = {"sleep": timed(engine.sleep, 2)}
        for tag in TAGS:
            inside["s"] = 0.0
            one[tag] = timed(engine.wake_up, [tag])
            one[f"{tag}_driver"] = inside["s"]
        rounds.append(one)
    medians = {name: round(statistics.median(one[name] for one in rounds[1:]), 4) for name in rounds[0]}
    size = sum(held["weights"])
    source, target = (torch.empty(size // 2, dtype=torch.uint8, device="cuda") for _ in range(2))
    copies = [2 * timed(target.copy_, source) for _ in range(repeats + 1)]
    return {
        "shape": shape,
        "engine_start_s": round(started, 1),
        "bytes": {tag: sum(sizes) for tag, sizes in held.items()},
        "allocations": {tag: len(sizes) for tag, sizes in held.items()},
        "seconds": medians,
        "rounds": rounds,
        "copy_of_the_weights_s": round(statistics.median(copies[1:]), 4),
        "facts": facts(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("shape")
    parser.add_argument("kv_gb", type=float, help="GB of KV cache")
    parser.add_argument("--repeats", type=int, default=8)
    given = parser.parse_args()
    result = measure(given.shape, given.kv_gb, given.repeats)
    given.result.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name not in ("rounds", "facts")}))


if __name__ == "__main__":
    main()
