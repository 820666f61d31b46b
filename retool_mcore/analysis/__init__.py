"""Questions to stored runs: another reward over their trajectories, arms against each other, a run on a reference.

Reads run folders and writes nothing into them; starts no engine. May import data, metrics, recipes, rewards, rollout,
state and view; only the command line imports it.
"""
