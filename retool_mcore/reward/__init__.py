"""From the text that the policy wrote to a number. May be imported by: algo, rollout, train.

Imports only errors, and the trajectory's record from rollout."""
