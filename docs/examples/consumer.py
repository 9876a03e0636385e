import json, os, sys
import pymongo

uri, place = sys.argv[1:3]
token = json.load(open(place)) if os.path.exists(place) else None
client = pymongo.MongoClient(uri)
with client.shop.orders.watch(resume_after=token) as stream:
    for event in stream:
        print(event["operationType"], event["documentKey"]["_id"], flush=True)
        # Stored after the work: what is interrupted in between is seen again, and nothing is missed.
        with open(place + ".new", "w") as file:
            json.dump(event["_id"], file)
        os.replace(place + ".new", place)
