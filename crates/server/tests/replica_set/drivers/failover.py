"""Writes through pymongo until standard input ends, and answers each line of it after some more
writes. No error may be seen, and nothing acknowledged may be missing: the set is broken meanwhile by
the test that started this."""

import queue
import sys
import threading

from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

client = MongoClient(sys.argv[1], retryWrites=True, serverSelectionTimeoutMS=60_000)
orders = client.get_database("shop").get_collection(
    "orders", write_concern=WriteConcern("majority", wtimeout=60_000)
)
stop = threading.Event()
asked = queue.SimpleQueue()


def listen():
    for line in sys.stdin:
        asked.put(line)
    stop.set()


threading.Thread(target=listen, daemon=True).start()
written = 0
goal = None
while not stop.is_set():
    orders.insert_one({"_id": written, "n": 0})
    orders.update_one({"_id": written}, {"$inc": {"n": 1}})
    written += 1
    if goal is None and not asked.empty():
        asked.get()
        goal = written + 20
    if written == goal:
        goal = None
        print(written, flush=True)
found = list(orders.find({}, sort=[("_id", 1)]))
assert [order["_id"] for order in found] == list(range(written)), len(found)
# A write that was sent twice must count once.
assert all(order["n"] == 1 for order in found), [order for order in found if order["n"] != 1]
print("content", flush=True)
