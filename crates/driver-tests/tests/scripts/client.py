"""pymongo against the server. Argument: the connection string; QUORATE_PARTS: the parts to run."""

import os
import sys

import pymongo
from pymongo import monitoring
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    CursorNotFound,
    DuplicateKeyError,
    OperationFailure,
)

URI = sys.argv[1]
checks = 0


def equal(found, expected):
    global checks
    assert found == expected, f"{found!r} instead of {expected!r}"
    checks += 1


def fails(error, code, action):
    global checks
    try:
        action()
    except error as raised:
        assert code is None or raised.code == code, raised
        checks += 1
        return raised
    raise AssertionError(f"{error.__name__} expected")


class Started(monitoring.CommandListener):
    """The names of the commands that were sent."""

    def __init__(self):
        self.names = []

    def started(self, event):
        self.names.append(event.command_name)

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


def documents():
    client = pymongo.MongoClient(URI)
    equal(client.admin.command("ping")["ok"], 1.0)
    equal(client.server_info()["versionArray"][0], 7)
    client.drop_database("clients")
    db = client.clients
    things = db.things

    equal(things.insert_one({"_id": 0, "a": 0}).inserted_id, 0)
    equal(len(things.insert_many([{"_id": n, "a": n % 7} for n in range(1, 1000)]).inserted_ids), 999)
    fails(DuplicateKeyError, 11000, lambda: things.insert_one({"_id": 1}))
    equal(things.find_one({"_id": 8}), {"_id": 8, "a": 1})
    equal(things.count_documents({"a": 3}), 143)
    equal(things.estimated_document_count(), 1000)
    equal(sorted(things.distinct("a")), list(range(7)))
    result = things.update_one({"_id": 1}, {"$set": {"b.c": 1}, "$inc": {"a": 10}})
    equal((result.matched_count, result.modified_count), (1, 1))
    equal(things.find_one(1), {"_id": 1, "a": 11, "b": {"c": 1}})
    equal(things.update_many({"a": 2}, {"$push": {"l": 1}}).modified_count, 143)
    equal(things.replace_one({"_id": "new"}, {"r": 1}, upsert=True).upserted_id, "new")
    after = pymongo.ReturnDocument.AFTER
    found = things.find_one_and_update({"_id": "new"}, {"$mul": {"r": 5}}, return_document=after)
    equal(found, {"_id": "new", "r": 5})
    equal(things.find_one_and_delete({"_id": "new"}), {"_id": "new", "r": 5})
    equal(things.delete_many({"_id": {"$gte": 990}}).deleted_count, 10)

    # Cursors.
    sent = Started()
    watched = pymongo.MongoClient(URI, event_listeners=[sent]).clients.things
    equal([d["_id"] for d in watched.find().sort("_id", -1).batch_size(100)], list(range(989, -1, -1)))
    equal(sent.names, ["find"] + ["getMore"] * 9)
    with watched.find(batch_size=2) as cursor:
        next(cursor)
    equal(sent.names[-1], "killCursors")
    opened = db.command("find", "things", batchSize=2)["cursor"]["id"]
    equal(db.command("killCursors", "things", cursors=[opened])["cursorsKilled"], [opened])
    fails(CursorNotFound, 43, lambda: db.command("getMore", opened, collection="things"))

    # Indexes.
    equal(things.create_index([("a", 1), ("_id", -1)]), "a_1__id_-1")
    equal([d["_id"] for d in things.find({"a": 3, "_id": {"$lt": 20}})], [17, 10, 3])
    plan = things.find({"a": 3}).explain()["queryPlanner"]["winningPlan"]["inputStage"]
    equal((plan["stage"], plan["indexName"]), ("IXSCAN", "a_1__id_-1"))
    equal(things.create_index("u", unique=True, sparse=True), "u_1")
    things.insert_one({"_id": "u", "u": 5})
    fails(DuplicateKeyError, 11000, lambda: things.insert_one({"u": 5}))
    equal(sorted(things.index_information()), ["_id_", "a_1__id_-1", "u_1"])
    things.drop_index("u_1")
    equal(sorted(things.index_information()), ["_id_", "a_1__id_-1"])
    things.delete_one({"_id": "u"})

    # Aggregation.
    totals = things.aggregate([
        {"$match": {"a": {"$lt": 3}}},
        {"$group": {"_id": "$a", "n": {"$sum": 1}, "most": {"$max": "$_id"}}},
        {"$sort": {"_id": 1}},
    ])
    equal(list(totals), [
        {"_id": 0, "n": 142, "most": 987},
        {"_id": 1, "n": 141, "most": 988},
        {"_id": 2, "n": 142, "most": 989},
    ])
    db.names.insert_many([{"_id": n, "name": str(n)} for n in range(7)])
    joined = things.aggregate([
        {"$match": {"_id": 10}},
        {"$lookup": {"from": "names", "localField": "a", "foreignField": "_id", "as": "names"}},
        {"$unwind": "$names"},
        {"$replaceWith": {"name": "$names.name"}},
    ])
    equal(list(joined), [{"name": "3"}])
    equal(len(list(things.aggregate([{"$project": {"a": 1}}], batchSize=50))), 990)

    # Bulk writes.
    result = db.bulk.bulk_write([
        pymongo.InsertOne({"_id": 1}),
        pymongo.UpdateOne({"_id": 1}, {"$set": {"x": 1}}),
        pymongo.ReplaceOne({"_id": 2}, {"y": 1}, upsert=True),
        pymongo.DeleteOne({"_id": 1}),
    ])
    equal((result.inserted_count, result.modified_count, result.deleted_count), (1, 1, 1))
    equal(result.upserted_ids, {2: 2})
    twice = [pymongo.InsertOne({"_id": n}) for n in (5, 5, 6)]
    error = fails(BulkWriteError, 65, lambda: db.bulk.bulk_write(twice, ordered=False))
    equal(error.details["nInserted"], 2)
    equal([(e["index"], e["code"]) for e in error.details["writeErrors"]], [(1, 11000)])


def retries():
    sent = Started()
    client = pymongo.MongoClient(URI, event_listeners=[sent])
    in_set = "setName" in client.admin.command("hello")
    things = client.clients.retried
    things.drop()
    things.insert_one({"_id": 1})

    def fail(**data):
        client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)
        sent.names.clear()

    for trouble in ({"closeConnection": True}, {"errorCode": 11600}):
        fail(failCommands=["find"], **trouble)
        equal(things.find_one(), {"_id": 1})
        equal(sent.names, ["find", "find"])
    fail(failCommands=["find"], errorCode=2)
    fails(OperationFailure, 2, things.find_one)
    equal(sent.names, ["find"])
    fail(failCommands=["insert"], closeConnection=True)
    if in_set:
        things.insert_one({"_id": 2})
        equal(sent.names, ["insert", "insert"])
        fail(failCommands=["update"], errorCode=91, errorLabels=["RetryableWriteError"])
        equal(things.update_one({"_id": 2}, {"$inc": {"n": 1}}).modified_count, 1)
        equal(sent.names, ["update", "update"])
        equal(list(things.find()), [{"_id": 1}, {"_id": 2, "n": 1}])
    else:
        fails(AutoReconnect, None, lambda: things.insert_one({"_id": 2}))
        equal(sent.names, ["insert"])
        equal(list(things.find()), [{"_id": 1}])


def round_trip():
    packed = pymongo.MongoClient(URI).clients.packed
    packed.drop()
    packed.insert_many([{"text": "x" * 1000} for _ in range(300)])
    equal(sum(len(d["text"]) for d in packed.find()), 300_000)


def login():
    stranger = pymongo.MongoClient(URI)
    fails(OperationFailure, 13, lambda: stranger.clients.things.insert_one({}))
    stranger.admin.command("createUser", "root", pwd="secret", roles=["root"])
    fails(OperationFailure, 13, lambda: stranger.admin.command("createUser", "b", pwd="b", roles=[]))
    for mechanism in (None, "SCRAM-SHA-1", "SCRAM-SHA-256"):
        options = {"authMechanism": mechanism} if mechanism else {}
        root = pymongo.MongoClient(URI, username="root", password="secret", **options)
        who = root.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
        equal(who, [{"user": "root", "db": "admin"}])
        wrong = pymongo.MongoClient(URI, username="root", password="wrong", **options)
        fails(OperationFailure, 18, lambda: wrong.clients.things.find_one())
    root.clients.things.insert_one({"_id": 1})
    root.clients.command("createUser", "reader", pwd="p\u00e9", roles=["read"])
    reader = pymongo.MongoClient(URI, username="reader", password="p\u00e9", authSource="clients")
    equal(reader.clients.things.find_one(), {"_id": 1})
    fails(OperationFailure, 13, lambda: reader.clients.things.insert_one({}))


def certificate():
    client = pymongo.MongoClient(URI)
    who = client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
    equal(who, [{"user": "CN=alice,O=Quorate", "db": "$external"}])
    client.clients.things.insert_one({"_id": 1})
    equal(client.clients.things.find_one(), {"_id": 1})
    fails(OperationFailure, 13, lambda: client.others.things.insert_one({}))


def transactions():
    client = pymongo.MongoClient(URI)
    client.drop_database("transactions")
    accounts = client.transactions.accounts
    accounts.insert_many([{"_id": "a", "n": 10}, {"_id": "b", "n": 0}])

    def transfer(session):
        accounts.update_one({"_id": "a"}, {"$inc": {"n": -4}}, session=session)
        accounts.update_one({"_id": "b"}, {"$inc": {"n": 4}}, session=session)
        return "done"

    balances = lambda session=None: [found["n"] for found in accounts.find(session=session).sort("_id")]
    with client.start_session() as session:
        equal(session.with_transaction(transfer), "done")
        equal(balances(), [6, 4])
        session.start_transaction()
        transfer(session)
        equal(balances(session), [2, 8])
        equal(balances(), [6, 4])
        session.abort_transaction()
        equal(balances(), [6, 4])
        # The first updater wins; the second is told at once, and may repeat.
        with client.start_session() as other:
            session.start_transaction()
            transfer(session)
            other.start_transaction()
            raised = fails(OperationFailure, 112, lambda: transfer(other))
            equal(raised.has_error_label("TransientTransactionError"), True)
            session.commit_transaction()
            session.commit_transaction()
        equal(balances(), [2, 8])


def watch():
    client = pymongo.MongoClient(URI)
    client.drop_database("watched")
    orders = client.watched.orders
    with orders.watch(full_document="updateLookup") as stream, client.watch() as all_of_it:
        change(orders)
        events = [next(stream) for _ in range(4)]
        equal([event["operationType"] for event in events], ["insert", "update", "replace", "delete"])
        equal([event["documentKey"]["_id"] for event in events], [1, 1, 1, 1])
        equal(events[0]["fullDocument"], {"_id": 1, "n": 1})
        equal(events[1]["updateDescription"]["updatedFields"], {"n": 2})
        equal(events[2]["fullDocument"], {"_id": 1, "r": 1})
        equal([next(all_of_it)["_id"] for _ in range(4)], [event["_id"] for event in events])
    # From the first event on, and across a connection that breaks.
    with orders.watch([{"$match": {"operationType": {"$ne": "update"}}}], resume_after=events[0]["_id"]) as stream:
        equal(next(stream)["operationType"], "replace")
        data = {"failCommands": ["getMore"], "closeConnection": True}
        client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)
        equal(next(stream)["operationType"], "delete")
        orders.insert_one({"_id": 2})
        equal(next(stream)["documentKey"], {"_id": 2})
    # A transaction shows nothing before its end, and then all of its changes.
    with client.watched.watch() as stream:
        with client.start_session() as session:
            session.start_transaction()
            orders.insert_many([{"_id": "x"}, {"_id": "y"}], session=session)
            equal(stream.try_next(), None)
            session.commit_transaction()
        both = [next(stream), next(stream)]
        equal([event["documentKey"]["_id"] for event in both], ["x", "y"])
        equal(both[0]["txnNumber"], both[1]["txnNumber"])
        orders.drop()
        equal(next(stream)["operationType"], "drop")
    with orders.watch() as stream:
        orders.insert_one({})
        orders.drop()
        equal([event["operationType"] for event in stream], ["insert", "drop", "invalidate"])


def change(orders):
    orders.insert_one({"_id": 1, "n": 1})
    orders.update_one({"_id": 1}, {"$inc": {"n": 1}})
    orders.replace_one({"_id": 1}, {"r": 1})
    orders.delete_one({"_id": 1})


parts = {
    "documents": documents,
    "transactions": transactions,
    "watch": watch,
    "retries": retries,
    "round-trip": round_trip,
    "login": login,
    "certificate": certificate,
}
for part in os.environ["QUORATE_PARTS"].split(","):
    parts[part]()
print(f"checks: {checks}")
