"""The grader's spellings, words and units, from tables.yaml."""

from retool_mcore.tables import yaml_beside

TABLES: dict = yaml_beside(__file__)
