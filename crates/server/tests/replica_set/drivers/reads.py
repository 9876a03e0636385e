"""Reads by every read preference and by tag sets, through pymongo. Each member is tagged with its
place, and has a note under `local` that says which one it is."""

import sys

from pymongo import MongoClient, read_preferences
from pymongo.errors import ServerSelectionTimeoutError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

uri = sys.argv[1]
client = MongoClient(uri, serverSelectionTimeoutMS=60_000, localThresholdMS=10_000)
shop = client.get_database("shop", write_concern=WriteConcern(3, wtimeout=60_000))
shop.orders.insert_many([{"_id": n} for n in range(10)])
primary, secondaries = client.primary, set(client.secondaries)
members = {primary} | secondaries
assert len(members) == 3, members


def asked(preference):
    """Whom many reads with a preference went to."""
    found = set()
    orders = shop.get_collection("orders", read_preference=preference)
    for _ in range(60):
        cursor = orders.find({})
        assert len(list(cursor)) == 10
        found.add(cursor.address)
    return found


assert asked(read_preferences.Primary()) == {primary}
assert asked(read_preferences.PrimaryPreferred()) == {primary}
assert asked(read_preferences.Secondary()) == secondaries
assert asked(read_preferences.SecondaryPreferred()) == secondaries
assert asked(read_preferences.Nearest()) == members

by_place = {
    tuple(member["host"].split(":")): member["tags"]["place"]
    for member in client.admin.command("replSetGetConfig")["config"]["members"]
}
for address in members:
    place = by_place[(address[0], str(address[1]))]
    tags = [{"place": place}]
    assert asked(read_preferences.Nearest(tag_sets=tags)) == {address}
    if address != primary:
        assert asked(read_preferences.Secondary(tag_sets=tags)) == {address}
        assert asked(read_preferences.SecondaryPreferred(tag_sets=tags)) == {address}
    # The first set that a member has counts, and an empty one means every member.
    tags = [{"place": "nowhere"}, {"kind": "test", "place": place}]
    assert asked(read_preferences.Nearest(tag_sets=tags)) == {address}
assert asked(read_preferences.Nearest(tag_sets=[{"place": "nowhere"}, {}])) == members

hurried = MongoClient(uri, serverSelectionTimeoutMS=500)
tagged = hurried.shop.get_collection(
    "orders", read_preference=read_preferences.Secondary(tag_sets=[{"place": "nowhere"}])
)
try:
    tagged.find_one({})
    raise AssertionError("a tag that no member has selected one")
except ServerSelectionTimeoutError:
    pass

for level in ["local", "available", "majority", "linearizable"]:
    orders = shop.get_collection("orders", read_concern=ReadConcern(level))
    assert len(list(orders.find({}))) == 10, level
stale = read_preferences.Secondary(max_staleness=120)
assert asked(stale) == secondaries
print("content")
