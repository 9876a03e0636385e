import sys
import pymongo

client = pymongo.MongoClient(sys.argv[1])
accounts = client.bank.accounts


def transfer(session):
    taken = accounts.update_one(
        {"_id": "ann", "balance": {"$gte": 5}}, {"$inc": {"balance": -5}}, session=session
    )
    if taken.modified_count == 0:
        raise ValueError("ann has less than 5")
    accounts.update_one({"_id": "bob"}, {"$inc": {"balance": 5}}, session=session)


# It runs `transfer` again after a conflict or a failover, and repeats a commit whose answer was lost.
with client.start_session() as session:
    session.with_transaction(transfer)
