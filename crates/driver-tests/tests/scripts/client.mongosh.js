// mongosh against the server, in the words a person types. QUORATE_PARTS: the parts to run.

/* global db, connect, EJSON, print */

const uri = db.getMongo().getURI();
const range = (from, to) => Array.from({ length: to - from }, (_, place) => from + place);
let checks = 0;

function equal(found, expected) {
  const [left, right] = [found, expected].map((value) => EJSON.stringify(value));
  if (left !== right) throw new Error(`${left} instead of ${right}`);
  checks += 1;
}

function fails(code, action) {
  let error;
  try {
    action();
  } catch (raised) {
    error = raised;
  }
  if (!error) throw new Error(`error ${code} expected`);
  if (code !== null && error.code !== code) throw error;
  checks += 1;
  return error;
}

function documents() {
  const clients = db.getSiblingDB("clients");
  equal(clients.runCommand({ ping: 1 }).ok, 1);
  equal(db.version().split(".")[0], "7");
  clients.dropDatabase();
  const things = clients.things;
  crud(things);
  cursors(clients, things);
  indexes(things);
  aggregation(clients, things);
  bulkWrites(clients.bulk);
  equal(clients.getCollectionNames().sort(), ["bulk", "names", "things"]);
  equal(things.stats().count, 990);
}

function crud(things) {
  equal(things.insertOne({ _id: 0, a: 0 }).insertedId, 0);
  const many = things.insertMany(range(1, 1000).map((n) => ({ _id: n, a: n % 7 })));
  equal(Object.keys(many.insertedIds).length, 999);
  fails(11000, () => things.insertOne({ _id: 1 }));
  equal(things.findOne({ _id: 8 }), { _id: 8, a: 1 });
  equal(things.countDocuments({ a: 3 }), 143);
  equal(things.estimatedDocumentCount(), 1000);
  equal(things.distinct("a").sort(), range(0, 7));
  const updated = things.updateOne({ _id: 1 }, { $set: { "b.c": 1 }, $inc: { a: 10 } });
  equal([updated.matchedCount, updated.modifiedCount], [1, 1]);
  equal(things.findOne({ _id: 1 }), { _id: 1, a: 11, b: { c: 1 } });
  equal(things.updateMany({ a: 2 }, { $push: { l: 1 } }).modifiedCount, 143);
  equal(things.replaceOne({ _id: "new" }, { r: 1 }, { upsert: true }).upsertedCount, 1);
  const after = { returnDocument: "after" };
  const found = things.findOneAndUpdate({ _id: "new" }, { $mul: { r: 5 } }, after);
  equal(found, { _id: "new", r: 5 });
  equal(things.findOneAndDelete({ _id: "new" }), { _id: "new", r: 5 });
  equal(things.deleteMany({ _id: { $gte: 990 } }).deletedCount, 10);
}

function cursors(clients, things) {
  const all = things.find().sort({ _id: -1 }).batchSize(100).toArray();
  equal(all.map((thing) => thing._id), range(0, 990).reverse());
  const open = () => Number(clients.serverStatus().metrics.cursor.open.total);
  const before = open();
  const left = things.find().batchSize(2);
  left.next();
  equal(open() - before, 1);
  left.close();
  equal(open() - before, 0);
  const opened = clients.runCommand({ find: "things", batchSize: 2 }).cursor.id;
  const killed = clients.runCommand({ killCursors: "things", cursors: [opened] });
  equal(killed.cursorsKilled, [opened]);
  fails(43, () => clients.runCommand({ getMore: opened, collection: "things" }));
}

function indexes(things) {
  equal(things.createIndex({ a: 1, _id: -1 }), "a_1__id_-1");
  const few = things.find({ a: 3, _id: { $lt: 20 } }).toArray();
  equal(few.map((thing) => thing._id), [17, 10, 3]);
  const plan = things.find({ a: 3 }).explain().queryPlanner.winningPlan.inputStage;
  equal([plan.stage, plan.indexName], ["IXSCAN", "a_1__id_-1"]);
  equal(things.createIndex({ u: 1 }, { unique: true, sparse: true }), "u_1");
  things.insertOne({ _id: "u", u: 5 });
  fails(11000, () => things.insertOne({ u: 5 }));
  const names = () => things.getIndexes().map((index) => index.name).sort();
  equal(names(), ["_id_", "a_1__id_-1", "u_1"]);
  things.dropIndex("u_1");
  equal(names(), ["_id_", "a_1__id_-1"]);
  things.deleteOne({ _id: "u" });
}

function aggregation(clients, things) {
  const totals = things.aggregate([
    { $match: { a: { $lt: 3 } } },
    { $group: { _id: "$a", n: { $sum: 1 }, most: { $max: "$_id" } } },
    { $sort: { _id: 1 } },
  ]).toArray();
  equal(totals, [
    { _id: 0, n: 142, most: 987 },
    { _id: 1, n: 141, most: 988 },
    { _id: 2, n: 142, most: 989 },
  ]);
  clients.names.insertMany(range(0, 7).map((n) => ({ _id: n, name: String(n) })));
  const joined = things.aggregate([
    { $match: { _id: 10 } },
    { $lookup: { from: "names", localField: "a", foreignField: "_id", as: "names" } },
    { $unwind: "$names" },
    { $replaceWith: { name: "$names.name" } },
  ]).toArray();
  equal(joined, [{ name: "3" }]);
  equal(things.aggregate([{ $project: { a: 1 } }], { cursor: { batchSize: 50 } }).toArray().length, 990);
}

function bulkWrites(bulk) {
  const result = bulk.bulkWrite([
    { insertOne: { document: { _id: 1 } } },
    { updateOne: { filter: { _id: 1 }, update: { $set: { x: 1 } } } },
    { replaceOne: { filter: { _id: 2 }, replacement: { y: 1 }, upsert: true } },
    { deleteOne: { filter: { _id: 1 } } },
  ]);
  equal([result.insertedCount, result.modifiedCount, result.deletedCount], [1, 1, 1]);
  equal(result.upsertedIds, { 2: 2 });
  const twice = [5, 5, 6].map((n) => ({ insertOne: { document: { _id: n } } }));
  const error = fails(11000, () => bulk.bulkWrite(twice, { ordered: false }));
  equal(error.result.insertedCount, 2);
  equal(error.writeErrors.map((one) => [one.index, one.code]), [[1, 11000]]);
}

function retries() {
  const inSet = "setName" in db.hello();
  const things = db.getSiblingDB("clients").retried;
  things.drop();
  things.insertOne({ _id: 1 });
  // How often the fail point was hit is told when the next one is set.
  const fail = (data) => db.adminCommand({ configureFailPoint: "failCommand", mode: { times: 1 }, data });
  for (const trouble of [{ closeConnection: true }, { errorCode: 11600 }]) {
    const before = fail({ failCommands: ["find"], ...trouble }).count;
    equal(things.findOne(), { _id: 1 });
    equal(db.adminCommand({ configureFailPoint: "failCommand", mode: "off" }).count - before, 1);
  }
  fail({ failCommands: ["find"], errorCode: 2 });
  fails(2, () => things.findOne());
  fail({ failCommands: ["insert"], closeConnection: true });
  if (inSet) {
    const before = fail({ failCommands: ["insert"], closeConnection: true }).count;
    things.insertOne({ _id: 2 });
    equal(db.adminCommand({ configureFailPoint: "failCommand", mode: "off" }).count - before, 1);
    fail({ failCommands: ["update"], errorCode: 91, errorLabels: ["RetryableWriteError"] });
    equal(things.updateOne({ _id: 2 }, { $inc: { n: 1 } }).modifiedCount, 1);
    equal(things.find().toArray(), [{ _id: 1 }, { _id: 2, n: 1 }]);
  } else {
    equal(fails(null, () => things.insertOne({ _id: 2 })).name, "MongoNetworkError");
    equal(things.find().toArray(), [{ _id: 1 }]);
  }
}

function roundTrip() {
  const packed = db.getSiblingDB("clients").packed;
  packed.drop();
  packed.insertMany(range(0, 300).map(() => ({ text: "x".repeat(1000) })));
  const lengths = packed.find().toArray().map((one) => one.text.length);
  equal(lengths.reduce((sum, length) => sum + length), 300_000);
}

function login() {
  const host = uri.match(/^mongodb:\/\/([^/]+)/)[1];
  const as = (user, password, options = "") =>
    connect(`mongodb://${user}:${encodeURIComponent(password)}@${host}/clients?${options}`);
  fails(13, () => db.getSiblingDB("clients").things.insertOne({}));
  const admin = db.getSiblingDB("admin");
  admin.createUser({ user: "root", pwd: "secret", roles: ["root"] });
  fails(13, () => admin.createUser({ user: "b", pwd: "b", roles: [] }));
  for (const mechanism of ["", "&authMechanism=SCRAM-SHA-1", "&authMechanism=SCRAM-SHA-256"]) {
    const status = as("root", "secret", `authSource=admin${mechanism}`).runCommand({ connectionStatus: 1 });
    equal(status.authInfo.authenticatedUsers, [{ user: "root", db: "admin" }]);
    fails(18, () => as("root", "wrong", `authSource=admin${mechanism}`).runCommand({ ping: 1 }));
  }
  const root = as("root", "secret", "authSource=admin");
  root.things.insertOne({ _id: 1 });
  root.createUser({ user: "reader", pwd: "p\u00e9", roles: ["read"] });
  equal(root.getUser("reader").roles, [{ role: "read", db: "clients" }]);
  const reader = as("reader", "p\u00e9");
  equal(reader.things.findOne(), { _id: 1 });
  fails(13, () => reader.things.insertOne({}));
}

function certificate() {
  const status = db.getSiblingDB("admin").runCommand({ connectionStatus: 1 });
  equal(status.authInfo.authenticatedUsers, [{ user: "CN=alice,O=Quorate", db: "$external" }]);
  const things = db.getSiblingDB("clients").things;
  things.insertOne({ _id: 1 });
  equal(things.findOne(), { _id: 1 });
  fails(13, () => db.getSiblingDB("others").things.insertOne({}));
}

function transactions() {
  const name = "transactions";
  db.getSiblingDB(name).dropDatabase();
  const outside = db.getSiblingDB(name).accounts;
  outside.insertMany([{ _id: "a", n: 10 }, { _id: "b", n: 0 }]);
  const session = db.getMongo().startSession();
  const accounts = session.getDatabase(name).accounts;
  const transfer = (within) => {
    within.updateOne({ _id: "a" }, { $inc: { n: -4 } });
    within.updateOne({ _id: "b" }, { $inc: { n: 4 } });
  };
  const balances = (within) => within.find().sort({ _id: 1 }).toArray().map((account) => account.n);
  session.withTransaction(() => transfer(accounts));
  equal(balances(outside), [6, 4]);
  session.startTransaction();
  transfer(accounts);
  equal(balances(accounts), [2, 8]);
  equal(balances(outside), [6, 4]);
  const other = db.getMongo().startSession();
  other.startTransaction();
  fails(112, () => transfer(other.getDatabase(name).accounts));
  session.abortTransaction();
  equal(balances(outside), [6, 4]);
  session.endSession();
}

function watch() {
  const watched = db.getSiblingDB("watched");
  watched.dropDatabase();
  const orders = watched.orders;
  const take = (stream, count) => {
    const events = [];
    while (events.length < count) {
      const event = stream.tryNext();
      if (event) events.push(event);
    }
    return events;
  };
  const streams = [watched.orders.watch(), watched.watch(), db.getMongo().watch()];
  // Opens them: each shows all that is written afterwards.
  streams.forEach((stream) => stream.tryNext());
  orders.insertOne({ _id: 1, n: 1 });
  orders.updateOne({ _id: 1 }, { $inc: { n: 1 } });
  orders.replaceOne({ _id: 1 }, { r: 1 });
  orders.deleteOne({ _id: 1 });
  const events = take(streams[0], 4);
  equal(events.map((event) => event.operationType), ["insert", "update", "replace", "delete"]);
  equal(events[1].updateDescription.updatedFields, { n: 2 });
  for (const stream of streams.slice(1)) {
    equal(take(stream, 4).map((event) => event._id), events.map((event) => event._id));
  }
  streams.forEach((stream) => stream.close());
  const filter = [{ $match: { operationType: { $ne: "update" } } }];
  const after = orders.watch(filter, { resumeAfter: events[0]._id });
  equal(take(after, 2).map((event) => event.operationType), ["replace", "delete"]);
  orders.drop();
  equal(take(after, 2).map((event) => event.operationType), ["drop", "invalidate"]);
  equal(after.isClosed(), true);
}

const parts = { documents, transactions, watch, retries, "round-trip": roundTrip, login, certificate };
for (const part of process.env.QUORATE_PARTS.split(",")) parts[part]();
print(`checks: ${checks}`);
