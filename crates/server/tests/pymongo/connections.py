"""Retries, sessions, durability and compression through pymongo. Argument: the port."""

import sys
import time

import pymongo
from pymongo.errors import AutoReconnect, ExecutionTimeout, OperationFailure

port = int(sys.argv[1])
client = pymongo.MongoClient("127.0.0.1", port, appname="judge", heartbeatFrequencyMS=500)
db = client.connections
db.things.insert_many([{"_id": n} for n in range(10)])


def fail(**data):
    times = data.pop("times", 1)
    client.admin.command("configureFailPoint", "failCommand", mode={"times": times}, data=data)


# Reads are retried once.
fail(failCommands=["find"], closeConnection=True, appName="judge")
assert len(list(db.things.find())) == 10
fail(failCommands=["find"], closeConnection=True, appName="another application")
assert len(list(db.things.find())) == 10
fail(failCommands=["find"], errorCode=11600)
assert len(list(db.things.find())) == 10
fail(failCommands=["find"], errorCode=2)
try:
    list(db.things.find())
    raise AssertionError("the error should reach the application")
except OperationFailure as error:
    assert error.code == 2
fail(failCommands=["find"], closeConnection=True, times=2)
try:
    list(db.things.find())
    raise AssertionError("two failures are one too many")
except AutoReconnect:
    pass
began = time.monotonic()
fail(failCommands=["ping"], blockConnection=True, blockTimeMS=150)
client.admin.command("ping")
assert time.monotonic() - began >= 0.15

# Sessions.
with client.start_session(causal_consistency=False) as session:
    cursor = db.things.find(batch_size=2, session=session)
    assert len(list(cursor)) == 10

# Durable writes.
durable = db.get_collection("durable", write_concern=pymongo.WriteConcern(j=True))
before = client.admin.command("serverStatus")["journal"]["syncs"]
durable.insert_one({})
assert client.admin.command("serverStatus")["journal"]["syncs"] > before
db.get_collection("majority", write_concern=pymongo.WriteConcern("majority")).insert_one({})
try:
    db.get_collection("three", write_concern=pymongo.WriteConcern(3)).insert_one({})
    raise AssertionError("a single member cannot acknowledge for three")
except OperationFailure as error:
    assert error.code == 2, error

# Compression, and exhaust cursors.
for compressor in ("zlib", "snappy", "zstd"):
    compressed = pymongo.MongoClient("127.0.0.1", port, compressors=compressor)
    names = compressed.connections
    names.packed.insert_many([{"text": "x" * 1000} for _ in range(300)])
    assert sum(len(d["text"]) for d in names.packed.find()) == 300_000
    exhaust = names.packed.find(cursor_type=pymongo.CursorType.EXHAUST, batch_size=50)
    assert len(list(exhaust)) == 300
    names.packed.drop()
    compressed.close()
