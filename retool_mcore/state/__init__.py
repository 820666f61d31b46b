"""Files of a run's folder through which a stage's processes, its launcher and observers communicate.

No torch here, and no library of engines.
"""
