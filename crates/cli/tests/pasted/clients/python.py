"""One operation with pymongo; prints its error."""
import sys

import pymongo

uri, operation = sys.argv[1:3]
try:
    client = pymongo.MongoClient(uri)
    if operation == "insert":
        client.shop.orders.insert_one({"x": 1})
    else:
        list(client.shop.orders.find())
    print("no error")
except Exception as error:
    print(f"{type(error).__module__}.{type(error).__name__}: {error}")
