"""The grader: whether an answer means the same as the ground truth. Imports nothing of the project but `tables`.

`text` -> `parse` -> `canonical`/`numeric` -> `scalar` -> `structure` decide in microseconds, or leave a pair undecided.
Spellings, words and units are in tables.yaml. The callers' door is `retool_mcore.rewards.equivalence`.
"""

from retool_mcore.tables import yaml_beside

# Spellings, words and units.
TABLES: dict = yaml_beside(__file__, "tables.yaml")
