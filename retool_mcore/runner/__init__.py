"""Runs one stage: its processes, its log, what it does meanwhile, its end."""
