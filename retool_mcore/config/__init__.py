"""The configuration of a stage: typed classes, presets, overrides, and their translation to verl's keys."""

from retool_mcore.config.files import CONFIG_DIR
from retool_mcore.config.load import check, compose, config_hash, keep_environment
from retool_mcore.config.models import STAGE_POLICIES, default_label, policy_path
from retool_mcore.config.shared import Unknown, own_words
from retool_mcore.config.trained import report as run_settings

__all__ = [
    "CONFIG_DIR",
    "STAGE_POLICIES",
    "Unknown",
    "check",
    "compose",
    "config_hash",
    "default_label",
    "keep_environment",
    "own_words",
    "policy_path",
    "run_settings",
]
