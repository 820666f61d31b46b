"""What surrounds a stage on a Slurm cluster: sites, submission, the job on its nodes, Ray across them, retries, status.

May be imported by: the command line. Imports launch and what launch imports; no stage knows that Slurm exists.
"""
