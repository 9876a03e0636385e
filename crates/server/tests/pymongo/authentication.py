"""Users, roles and logins through pymongo, against a server that demands them. Argument: the port."""

import sys

import pymongo
from pymongo.errors import OperationFailure

port = int(sys.argv[1])


def connect(user=None, password=None, **options):
    return pymongo.MongoClient("127.0.0.1", port, username=user, password=password, **options)


def refused(code, action):
    try:
        action()
    except OperationFailure as error:
        assert error.code == code, error
        return
    raise AssertionError("it should be refused")


# Before there is a user, a client on the same machine may create one and nothing else.
stranger = connect()
stranger.admin.command("ping")
refused(13, lambda: stranger.test.c.insert_one({}))
refused(13, lambda: stranger.test.command("createUser", "x", pwd="x", roles=[]))
stranger.admin.command("createUser", "root", pwd="secret", roles=["root"])
refused(13, lambda: stranger.admin.command("createUser", "late", pwd="x", roles=["root"]))

# Logging in, with each mechanism.
root = connect("root", "secret")
root.test.c.insert_one({"_id": 1})
for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256"):
    again = connect("root", "secret", authMechanism=mechanism)
    assert again.test.c.find_one() == {"_id": 1}
    who = again.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
    assert who == [{"user": "root", "db": "admin"}]
    refused(18, lambda: connect("root", "wrong", authMechanism=mechanism).test.c.find_one())
refused(18, lambda: connect("nobody", "secret").test.c.find_one())

# Roles.
root.test.command("createUser", "reader", pwd="p\u00e9", roles=["read"])
refused(51003, lambda: root.test.command("createUser", "reader", pwd="x", roles=[]))
refused(31, lambda: root.test.command("createUser", "odd", pwd="x", roles=["emperor"]))
reader = connect("reader", "p\u00e9", authSource="test")
assert reader.test.c.find_one() == {"_id": 1}
refused(13, lambda: reader.test.c.insert_one({}))
refused(13, lambda: reader.other.c.find_one())
# A pipeline may write where its user may.
for stage in ({"$out": "copy"}, {"$merge": "copy"}, {"$merge": {"into": "copy"}}):
    refused(13, lambda: reader.test.c.aggregate([stage]))
root.test.command("createUser", "writer", pwd="w", roles=["readWrite"])
writer = connect("writer", "w", authSource="test")
writer.test.c.aggregate([{"$out": "copy"}])
assert writer.test.copy.find_one() == {"_id": 1}
for target in ({"$out": {"db": "other", "coll": "c"}}, {"$merge": {"into": {"db": "other", "coll": "c"}}}):
    refused(13, lambda: writer.test.c.aggregate([target]))
assert "other" not in root.list_database_names()
refused(167, lambda: writer.test.create_collection("v", viewOn="c", pipeline=[{"$out": "d"}]))
refused(13, lambda: reader.admin.command("serverStatus"))
root.test.command("grantRolesToUser", "reader", roles=["readWrite"])
reader.test.c.insert_one({"_id": 2})
root.test.command("revokeRolesFromUser", "reader", roles=["readWrite"])
refused(13, lambda: reader.test.c.insert_one({}))

# Roles can be given and taken by those who administer the users of their database.
root.test.command("createUser", "clerk", pwd="k", roles=["userAdmin"])
clerk = connect("clerk", "k", authSource="test")
clerk.test.command("createUser", "visitor", pwd="v", roles=["read"])
for role in ({"role": "root", "db": "admin"}, {"role": "readWrite", "db": "other"}):
    refused(13, lambda: clerk.test.command("createUser", "king", pwd="k", roles=[role]))
    refused(13, lambda: clerk.test.command("grantRolesToUser", "clerk", roles=[role]))
    refused(13, lambda: clerk.test.command("updateUser", "visitor", roles=[role]))
clerk.test.command("grantRolesToUser", "visitor", roles=["readWrite"])

# Credentials stay with those who administer users.
root.admin.command("createUser", "all", pwd="all", roles=["readWriteAnyDatabase"])
everywhere = connect("all", "all").admin
refused(13, lambda: everywhere["system.users"].find_one())
refused(13, lambda: everywhere.create_collection("stolen", viewOn="system.users"))
root.admin.create_collection("stolen", viewOn="system.users")
refused(13, lambda: everywhere.stolen.find_one())
refused(13, lambda: list(everywhere.stolen.aggregate([])))
refused(20, lambda: root.admin["system.users"].insert_one({"_id": "admin.fake"}))
join = {"$lookup": {"from": "system.users", "as": "users", "pipeline": []}}
everywhere.c.insert_one({})
refused(13, lambda: list(everywhere.c.aggregate([join])))

# Changing and removing users.
shown = root.test.command("usersInfo", "reader")["users"]
assert len(shown) == 1 and "credentials" not in shown[0]
assert sorted(shown[0]["mechanisms"]) == ["SCRAM-SHA-1", "SCRAM-SHA-256"]
root.test.command("updateUser", "reader", pwd="new")
assert connect("reader", "new", authSource="test").test.c.count_documents({}) == 2
root.test.command("dropUser", "reader")
refused(18, lambda: connect("reader", "new", authSource="test").test.c.find_one())
refused(11, lambda: root.test.command("dropUser", "reader"))
