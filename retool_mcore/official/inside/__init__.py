"""What runs inside the sandbox: sources that `grader.py` sends there. No module of the package imports them.

They import the standard library, the graders' packages and each other.
"""
