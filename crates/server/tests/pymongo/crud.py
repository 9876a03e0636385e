"""Documents, cursors and indexes through pymongo. Argument: the port."""

import sys

import pymongo
from bson import Decimal128, Int64, ObjectId
from pymongo.errors import BulkWriteError, CollectionInvalid, DuplicateKeyError, OperationFailure


def expect(error, code, action):
    try:
        action()
    except error as raised:
        assert code is None or raised.code == code, raised
        return raised
    raise AssertionError(f"{error.__name__} expected")


client = pymongo.MongoClient("127.0.0.1", int(sys.argv[1]), serverSelectionTimeoutMS=5000)
client.admin.command("ping")
assert client.server_info()["versionArray"][0] == 7
db = client.crud

# Inserts.
things = db.things
assert things.insert_one({"_id": 1, "a": 1}).inserted_id == 1
generated = things.insert_one({"a": 2}).inserted_id
assert isinstance(generated, ObjectId) and things.find_one(generated)["a"] == 2
assert len(things.insert_many([{"_id": n, "a": n % 7} for n in range(2, 1002)]).inserted_ids) == 1000
duplicate = expect(DuplicateKeyError, 11000, lambda: things.insert_one({"_id": 1}))
assert duplicate.details["keyValue"] == {"_id": 1}
failed = expect(
    BulkWriteError,
    None,
    lambda: db.bulk.insert_many([{"_id": n} for n in (1, 1, 2)], ordered=False),
)
assert failed.details["nInserted"] == 2

# Cursors over several batches, in the order of insertion.
assert [d["_id"] for d in things.find({"_id": {"$type": "int"}}).batch_size(50)] == list(range(1, 1002))
assert [d["_id"] for d in things.find().sort("_id", -1).skip(1).limit(2)] == [1001, 1000]
assert things.count_documents({"a": 3}) == len(list(things.find({"a": 3})))
assert things.estimated_document_count() == 1002
assert sorted(things.distinct("a")) == list(range(7))
with things.find(batch_size=2) as cursor:
    next(cursor)
    assert cursor.alive

# Types survive.
document = {
    "_id": "types", "double": 1.5, "long": Int64(2**40), "decimal": Decimal128("1.10"),
    "nested": {"list": [1, {"x": None}]}, "text": "né", "binary": b"\x00\x01", "flag": True,
}
db.types.insert_one(document)
assert db.types.find_one({"decimal": 1.1}) is None
assert db.types.find_one({"decimal": Decimal128("1.1")}) == document

# Indexes.
assert things.create_index([("a", 1), ("_id", -1)]) == "a_1__id_-1"
assert [d["_id"] for d in things.find({"a": 3, "_id": {"$lt": 20}})] == [17, 10, 3]
things.create_index("u", unique=True, sparse=True)
things.insert_one({"u": 5})
expect(DuplicateKeyError, 11000, lambda: things.insert_one({"u": 5}))
assert set(things.index_information()) == {"_id_", "a_1__id_-1", "u_1"}
things.drop_index("u_1")
expect(OperationFailure, 27, lambda: things.drop_index("u_1"))

# Updates.
assert things.update_one({"_id": 1}, {"$set": {"b": {"c": 1}}}).modified_count == 1
assert things.update_many({"a": 1}, {"$inc": {"hits": 1}}).modified_count > 100
assert things.replace_one({"_id": 1}, {"a": 1, "whole": True}).matched_count == 1
assert things.find_one({"_id": 1}) == {"_id": 1, "a": 1, "whole": True}
upserted = things.update_one({"name": "new"}, {"$set": {"a": 99}}, upsert=True)
assert things.find_one({"_id": upserted.upserted_id})["name"] == "new"
after = pymongo.ReturnDocument.AFTER
found = things.find_one_and_update({"_id": 2}, {"$push": {"l": 5}}, return_document=after)
assert found["l"] == [5]
assert things.find_one_and_delete({"_id": 2}, {"l": 1}) == {"_id": 2, "l": [5]}
assert things.find_one({"_id": 3}, {"a": 1, "_id": 0}) == {"a": 3}
result = things.bulk_write([
    pymongo.InsertOne({"_id": "bulk"}),
    pymongo.UpdateOne({"_id": "bulk"}, {"$set": {"x": 1}}),
    pymongo.ReplaceOne({"_id": "other"}, {"y": 1}, upsert=True),
    pymongo.DeleteOne({"_id": "bulk"}),
])
assert (result.inserted_count, result.modified_count, result.deleted_count) == (1, 1, 1)
assert result.upserted_ids == {2: "other"}

# Aggregation.
totals = things.aggregate([
    {"$match": {"_id": {"$type": "int"}}},
    {"$group": {"_id": "$a", "n": {"$sum": 1}, "most": {"$max": "$_id"}}},
    {"$sort": {"_id": 1}},
    {"$limit": 2},
])
assert [(t["_id"], t["n"] > 100, t["most"]) for t in totals] == [(0, True, 1001), (1, True, 995)]
db.names.insert_many([{"_id": n, "name": str(n)} for n in range(7)])
joined = list(things.aggregate([
    {"$match": {"_id": 10}},
    {"$lookup": {"from": "names", "localField": "a", "foreignField": "_id", "as": "names"}},
    {"$unwind": "$names"},
    {"$replaceWith": {"name": "$names.name"}},
]))
assert joined == [{"name": "3"}], joined
things.aggregate([{"$match": {"a": 4}}, {"$out": "fours"}])
assert db.fours.count_documents({}) == things.count_documents({"a": 4})
plan = things.find({"a": 3}).explain()["queryPlanner"]["winningPlan"]
assert plan["inputStage"]["indexName"] == "a_1__id_-1"

# Deletes.
assert things.delete_one({"a": 3}).deleted_count == 1
assert things.delete_many({"a": {"$gte": 5}}).deleted_count > 100
assert things.count_documents({"a": {"$gte": 5}}) == 0
assert db.validate_collection("things")["valid"]

# Collections and databases.
db.create_collection("capped", capped=True, size=4096, max=2)
expect(CollectionInvalid, None, lambda: db.create_collection("capped"))
db.capped.insert_many([{"n": n} for n in range(5)])
assert [d["n"] for d in db.capped.find()] == [3, 4]
db.capped.rename("renamed")
assert "renamed" in db.list_collection_names() and "capped" not in db.list_collection_names()
assert db.renamed.options()["max"] == 2
db.drop_collection("renamed")
assert "crud" in client.list_database_names()
client.drop_database("crud")
assert db.list_collection_names() == []
expect(OperationFailure, 59, lambda: db.command("frobnicate"))
