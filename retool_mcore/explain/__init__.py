"""Why a run does not learn: each cause is a function of a prepared view of the run that returns a Finding, or None.

`prepared.py` reads the run once; the causes are in `answers.py`, `calls.py`, `rewards.py`, `updates.py`, `problems.py`,
`speed.py` and `cold_start.py`; `report.py` ranks what they find. Reads files only. May import metrics, runner and
state, and no torch: `retool status` shows the first finding of a run that goes on.
"""
