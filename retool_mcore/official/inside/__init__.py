"""Sources that `grader.py` sends into the sandbox, where they run. No module of the package imports them.

They import the standard library, the graders' packages and each other.
"""
