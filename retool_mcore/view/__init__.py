"""`retool view`: the trajectories of a run in a browser. Reads what metrics/ wrote; never writes into a run."""
