"""Tasks and graders of other packages, run in our own sandbox: they evaluate or execute what a policy wrote.

`grader.py` asks them; `inside/` is what runs in the sandbox. Imports the sandbox, and none of those packages.
"""
