"""The tests. A package, since another distribution of the environment installs one of the same name."""
