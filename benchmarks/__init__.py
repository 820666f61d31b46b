"""Measurements behind the claims of README and docs/; they import the package and the rigs of tests/support."""
