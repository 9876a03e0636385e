"""A real replica set for tests, in one line.

    with ReplicaSet() as rs:
        client = pymongo.MongoClient(rs.uri)

The set is three processes on loopback, ready when a majority has acknowledged a write. Transactions and change streams
need a set of one at least: ``ReplicaSet(members=1)`` is the fastest to start.
"""

from ._set import Member, QuorateError, ReplicaSet

__all__ = ["Member", "QuorateError", "ReplicaSet"]
