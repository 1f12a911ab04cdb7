"""Rollout replay beside other stores: pushing and sampling a step's groups, cost as work grows, memory.

Each store is a server process and a client. The client is a worker of this benchmark, a process in the store's own
environment that pushes or samples when it is told to (``serving``, ``worker``), so that all can take turns round after
round. The clock runs in the client, from containers of arrays to the acknowledgement, and from the request to arrays.

The other stores are given what makes them fast: keys that the client knows, groups of one size that need no
description, entries that are overwritten in place. Ours is the service as it is: durable before it acknowledges, every
group checked, samples recorded.
"""
