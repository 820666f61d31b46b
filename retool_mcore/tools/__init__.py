"""Tools that a policy calls: the interface, those delivered, and how a configuration names them.

May be imported by: rollout, train, preflight. Imports data and sandbox."""
