"""Stages on a Slurm cluster: sites, submission, the job on its nodes, Ray across them, retries, status.

No stage knows that Slurm exists.
"""
