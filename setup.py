"""What pyproject.toml cannot say: configs/, at the top of the repository, travels in the wheel as package data."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["retool_mcore*"]), "retool_mcore.configs"],
    package_dir={"retool_mcore.configs": "configs"},
    package_data={
        "retool_mcore.analysis": ["references/*.json"],
        "retool_mcore.backends": ["*.yaml"],
        "retool_mcore.coldstart": ["templates/*"],
        "retool_mcore.data": ["*.yaml", "*.jinja"],
        "retool_mcore.metrics": ["*.json"],
        "retool_mcore.planner": ["*.jinja", "*.yaml"],
        "retool_mcore.rewards.grader": ["*.yaml"],
        "retool_mcore.sandbox.isolation": ["*.txt"],
        "retool_mcore.sandbox.local": ["*.txt"],
        "retool_mcore.train": ["card.md"],
        "retool_mcore.view": ["page/*"],
        "retool_mcore.configs": ["*/*.yaml", "*/*/*.jinja", "site/network/*.yaml"],
    },
)
