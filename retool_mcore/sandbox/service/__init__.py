"""The sandbox as a service: an HTTP server that speaks SandboxFusion's API, and the client of one or many of them.

server: app (routes, drain) - schema (requests, replies) - queue - runs (request ids) - metrics - register (its address)
client: pool (a run, retried until it is done) - hosts (who is there, up and least loaded)
"""
