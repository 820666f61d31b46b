"""GRPO on `data=calls` in plain torch, to look for a learning rate and a batch: one process a setting, no engine.

    python -m benchmarks.learning.plain runs/b1-taught/sft/policy --prompts 64 --mini 16 --lr 6e-5 --seconds 600

Same problems, rewards, advantages, clipped loss and draw of mini-batches as the arms F and N of plan_calls.yaml; the
weights are float32, the rollouts Hugging Face's `generate` in bfloat16. What it prints beside the rollouts' accuracy is
the mean probability of the right answer as a trace writes it: of other problems of the training functions, and of the
test split's, which neither training nor a verdict uses. It is the accuracy at temperature 1 without its noise.
"""

import argparse
import contextlib
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from retool_mcore.data import function_tasks
from retool_mcore.rewards.sample import Sample
from retool_mcore.rewards.tool_calls import judge, tool_n1
from retool_mcore.rewards.toolrl import toolrl

MIX = {"calls_1": 1.0, "calls_2": 1.0, "calls_3": 1.0}
NEW_TOKENS, END, PAD = 290, 258, 256
CLIP, DUAL_CLIP = 0.2, 3.0
ROWS, SAMPLED = 48, 512  # trajectories of a micro-batch, and of one call of `generate`


class Policy:
    """The model, and what is asked of it; a trajectory is (prompt ids, response ids)."""

    def __init__(self, folder: Path, device: str):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
        self.device = device

    def _half(self):
        return torch.autocast("cuda", torch.bfloat16) if self.device == "cuda" else contextlib.nullcontext()

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def problems(self, number: int, seed: int, split: str) -> list[tuple[list[int], str]]:
        """(prompt ids, ground truth) each."""
        found = []
        for row in function_tasks.call_rows(number, seed, split, MIX, near=0.7):
            problem = function_tasks.call_problem(row, 0)
            said, tools = [{"role": "user", "content": problem.question}], json.loads(problem.tools)
            text = self.tokenizer.apply_chat_template(said, tools=tools, tokenize=False, add_generation_prompt=True)
            found.append((self.ids(text), problem.answer))
        return found

    def log_probs(self, rows) -> tuple[torch.Tensor, torch.Tensor]:
        """(log-probabilities, mask of the response), both (rows, tokens - 1) float32, predicting the next token."""
        length = max(len(prompt) + len(response) for prompt, response in rows)
        ids, seen, mask = np.full((len(rows), length), END), *np.zeros((2, len(rows), length), np.int64)
        for place, (prompt, response) in enumerate(rows):
            end = len(prompt) + len(response)
            ids[place, :end], seen[place, :end], mask[place, len(prompt) : end] = prompt + response, 1, 1
        ids, seen, mask = (torch.from_numpy(array).to(self.device) for array in (ids, seen, mask))
        with self._half():
            logits = self.model(input_ids=ids, attention_mask=seen, use_cache=False).logits
        return logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0], mask[:, 1:].float()

    @torch.no_grad()
    def sample(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        length = max(map(len, prompts))
        ids = torch.tensor([[PAD] * (length - len(p)) + p for p in prompts], device=self.device)
        seen = torch.tensor([[0] * (length - len(p)) + [1] * len(p) for p in prompts], device=self.device)
        asked = dict(max_new_tokens=new_tokens, do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
        with self._half():
            out = self.model.generate(ids, attention_mask=seen, eos_token_id=END, pad_token_id=PAD, **asked)
        rows = out[:, length:].tolist()
        return [row[: row.index(END) + 1] if END in row else row for row in rows]

    @torch.no_grad()
    def right(self, problems) -> float:
        """Mean probability of the right answer, as a trace writes it."""
        rows = []
        for prompt, truth in problems:
            calls = [{"name": call["name"], "arguments": call["arguments"]} for call in json.loads(truth)]
            written = "\n".join(map(json.dumps, calls))
            text = f"<think>{calls[0]['name']}</think><tool_call>{written}</tool_call>"
            rows.append((prompt, [*self.ids(text), END]))
        sums = [(log_probs * mask).sum(1) for log_probs, mask in map(self.log_probs, _by(rows, ROWS))]
        return float(torch.cat(sums).exp().mean())

    def reward(self, response: list[int], truth: str, arm: str) -> tuple[float, float]:
        """(reward, accuracy) of a response."""
        text = self.tokenizer.decode(response, skip_special_tokens=True)
        right = judge(text, truth)["acc"]
        sample = Sample(right, truth, text, response, [(0, len(response))], (), (), "answer", 1)
        return (tool_n1(sample, lines=True) if arm == "N" else toolrl(sample)), right


def _by(rows: list, size: int) -> Iterator[list]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def advantages(rewards: list[float], by_std: bool, positive: bool) -> np.ndarray:
    values = np.array(rewards) - np.mean(rewards)
    if by_std:
        values = values / (np.std(rewards, ddof=1) + 1e-6)
    return np.maximum(values, 0.0) if positive else values


def update(policy: Policy, optimizer, rows: list, old: list, weights: list[float], size: int) -> float:
    """One optimizer step on trajectories; `size`: those of the mini-batch, with those that have no advantage."""
    optimizer.zero_grad()
    for part in _by(list(range(len(rows))), ROWS):
        log_probs, mask = policy.log_probs([rows[place] for place in part])
        before = torch.zeros_like(log_probs)
        for line, place in enumerate(part):
            begin = len(rows[place][0]) - 1
            before[line, begin : begin + len(old[place])] = old[place].to(before)
        gain = torch.tensor([weights[place] for place in part], device=policy.device)[:, None]
        ratio = ((log_probs - before) * mask).exp()
        loss = torch.maximum(-gain * ratio, -gain * ratio.clamp(1 - CLIP, 1 + CLIP))
        loss = torch.where(gain < 0, torch.minimum(loss, -gain * DUAL_CLIP), loss)
        ((loss * mask).sum(1) / mask.sum(1)).sum().div(size).backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
    optimizer.step()
    return float(norm)


def train(policy: Policy, options: argparse.Namespace) -> list[list[float]]:
    """The curve: step, accuracy of the rollouts since the last line, probability right on training functions and on
    the test split's."""
    rng, n = random.Random(options.seed), options.samples
    torch.manual_seed(options.seed)
    problems = policy.problems(options.problems, 7, "train")
    others = [policy.problems(options.evaluate, 555, split) for split in ("train", "test")]
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=options.lr, eps=options.eps, weight_decay=0.0)
    curve: list[list[float]] = [[0, 0.0, *map(policy.right, others)]]
    print(curve[0], flush=True)
    begun, step, updates, found = time.monotonic(), 0, 0, []
    while time.monotonic() - begun < options.seconds:
        step += 1
        chosen = [question for question in rng.sample(problems, options.prompts) for _ in range(n)]
        prompts = [prompt for prompt, _ in chosen]
        responses = [r for part in _by(prompts, SAMPLED) for r in policy.sample(part, options.new_tokens)]
        rewards = [policy.reward(r, truth, options.arm) for r, (_, truth) in zip(responses, chosen, strict=True)]
        found += [right for _, right in rewards]
        gains = [advantages([r for r, _ in group], not options.no_std, options.positive) for group in _by(rewards, n)]
        weights = np.concatenate(gains).tolist()
        rows = [(prompt, response) for (prompt, _), response in zip(chosen, responses, strict=True)]
        old = []
        with torch.no_grad():
            for log_probs, mask in map(policy.log_probs, _by(rows, ROWS)):
                old += [line[kept > 0].cpu() for line, kept in zip(log_probs, mask, strict=True)]
        order, norms = rng.sample(range(len(rows)), len(rows)), []
        for part in _by(order, options.mini * n):
            kept = [place for place in part if abs(weights[place]) > 1e-5]
            updates += 1
            optimizer.param_groups[0]["lr"] = options.lr * min(1.0, updates / max(options.warmup, 1))
            if kept:
                mine = [[values[place] for place in kept] for values in (rows, old, weights)]
                norms.append(update(policy, optimizer, *mine, size=len(part)))
        if step % 5 == 0 or step < 3:
            curve.append([step, float(np.mean(found)), *map(policy.right, others)])
            print(curve[-1], f"norm {np.mean(norms or [0]):.3f}, {time.monotonic() - begun:.0f} s", flush=True)
            found = []
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", type=Path, help="the start, a Hugging Face folder")
    parser.add_argument("--arm", choices=["F", "N"], default="F", help="the reward, fine-grained or binary")
    parser.add_argument("--prompts", type=int, default=64, help="of a step")
    parser.add_argument("--samples", type=int, default=8, help="of a prompt")
    parser.add_argument("--mini", type=int, default=16, help="prompts of an update")
    parser.add_argument("--lr", type=float, default=6e-5)
    parser.add_argument("--warmup", type=int, default=10, help="updates")
    parser.add_argument("--eps", type=float, default=1e-8, help="Adam's")
    parser.add_argument("--no-std", action="store_true", help="advantages not divided by the group's deviation")
    parser.add_argument("--positive", action="store_true", help="negative advantages are 0")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--problems", type=int, default=4096)
    parser.add_argument("--evaluate", type=int, default=512, help="problems of each of the two other sets")
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS)
    options = parser.parse_args()
    print(json.dumps(train(Policy(options.policy, "cuda" if torch.cuda.is_available() else "cpu"), options)))


if __name__ == "__main__":
    main()
