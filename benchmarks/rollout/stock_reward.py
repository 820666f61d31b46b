"""The reward of rollout.py's run of verl's own trainer: right or wrong, by the digit in the box."""

import re


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    found = re.findall(r"\\boxed\{(\d)\}", solution_str)
    return 1.0 if found and found[-1] == ground_truth else -1.0
