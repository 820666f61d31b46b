"""The configuration of a stage: composed from YAML, overridden, checked, resolved."""

from retool_mcore.config.resolve import (
    CONFIG_DIR,
    FREE,
    STAGE_POLICIES,
    VERL_BASE,
    VERL_FREE,
    compose,
    config_hash,
    keep_environment,
    policy_path,
    register_resolvers,
)

__all__ = [
    "CONFIG_DIR",
    "FREE",
    "STAGE_POLICIES",
    "VERL_BASE",
    "VERL_FREE",
    "compose",
    "config_hash",
    "keep_environment",
    "policy_path",
    "register_resolvers",
]
