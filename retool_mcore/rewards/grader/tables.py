"""The grader's spellings, words and units, from tables.yaml."""

from pathlib import Path

import yaml

TABLES: dict = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
