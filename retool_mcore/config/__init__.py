"""The configuration of a stage: composed from YAML, overridden, checked, resolved."""

from retool_mcore.config.resolve import (
    CONFIG_DIR,
    compose,
    config_hash,
    default_label,
    keep_environment,
    policy_path,
    register_resolvers,
)
from retool_mcore.config.shared import Unknown, own_words
from retool_mcore.config.trained import STAGE_POLICIES
from retool_mcore.config.trained import report as run_settings

__all__ = [
    "CONFIG_DIR",
    "STAGE_POLICIES",
    "Unknown",
    "compose",
    "config_hash",
    "default_label",
    "keep_environment",
    "own_words",
    "policy_path",
    "register_resolvers",
    "run_settings",
]
