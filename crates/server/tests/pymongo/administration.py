"""What administrators and their tools ask, through pymongo. Argument: the port."""

import sys

import pymongo
from pymongo.errors import CursorNotFound, ExecutionTimeout, OperationFailure

port = int(sys.argv[1])
client = pymongo.MongoClient("127.0.0.1", port, appname="judge")
admin, db = client.admin, client.administration


def refused(code, work):
    try:
        work()
    except OperationFailure as error:
        assert error.code == code, error
        return error
    raise AssertionError(f"error {code} was expected")


# The profiler, as its readers see it.
db.things.insert_many([{"_id": n, "n": n % 7} for n in range(200)])
db.things.create_index("n")
assert db.command("profile", 2)["was"] == 0
assert len(list(db.things.find({"n": 3}).comment("look here"))) == 29
told = db.system.profile.find_one({"command.comment": "look here"})
assert told["op"] == "query" and told["ns"] == "administration.things", told
assert told["docsExamined"] == 29 and told["keysExamined"] == 29, told
assert told["planSummary"].startswith("IXSCAN"), told
assert told["appName"] == "judge" and told["client"] == "127.0.0.1", told
assert db.command("profile", 0)["was"] == 2
assert db.system.profile.options()["capped"] is True

# Writes are locked out, and wait no longer than they may.
admin.command("fsync", lock=True)
assert admin.command("currentOp")["fsyncLock"] is True
try:
    db.command("insert", "things", documents=[{}], maxTimeMS=50)
    raise AssertionError("nothing may be written")
except ExecutionTimeout as error:
    assert error.code == 50, error
assert db.things.count_documents({}) == 200
assert admin.command("fsyncUnlock")["lockCount"] == 0
db.things.insert_one({"_id": 200})

# Figures grow with what is done.
before = admin.command("serverStatus")
db.things.insert_many([{}, {}, {}])
list(db.things.find().batch_size(50))
after = admin.command("serverStatus")


def grown(section, name):
    return after[section][name] - before[section][name]


assert grown("opcounters", "insert") == 3
assert grown("opcounters", "query") == 1 and grown("opcounters", "getmore") >= 3
assert grown("network", "bytesIn") > 0 and grown("network", "bytesOut") > 0
assert grown("network", "numRequests") >= 5
assert after["mem"]["resident"] > 0 and after["connections"]["current"] >= 1

# Cursors end with their session.
with client.start_session() as session:
    cursor = db.things.find(batch_size=2, session=session)
    next(cursor)
    admin.command("killSessions", [session.session_id])
    try:
        list(cursor)
        raise AssertionError("the cursor should be gone")
    except CursorNotFound:
        pass

# A cursor may take the time that the command which opened it has left.
cursor = db.things.find(batch_size=2).max_time_ms(60_000)
next(cursor)
assert len(list(cursor)) == 203

# Concerns of a set are not for a server by itself.
refused(51300, lambda: admin.command("setDefaultRWConcern", defaultWriteConcern={"w": 1}))
refused(51300, lambda: admin.command("getDefaultRWConcern"))
