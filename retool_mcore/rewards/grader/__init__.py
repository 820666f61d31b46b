"""The grader: whether an answer means the same as the ground truth. Imports nothing of the project but `errors`.

`text` -> `parse` -> `canonical`/`numeric` -> `scalar` -> `structure` decide in microseconds, or leave a pair undecided.
Spellings, words and units are in tables.yaml. The callers' door is `retool_mcore.rewards.equivalence`.
"""
