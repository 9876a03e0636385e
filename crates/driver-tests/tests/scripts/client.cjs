// The Node driver against the server. Argument: the connection string; QUORATE_PARTS: the parts.

"use strict";

const { isDeepStrictEqual, inspect } = require("node:util");
const { MongoClient } = require("mongodb");

const uri = process.argv[2];
const range = (from, to) => Array.from({ length: to - from }, (_, place) => from + place);
let checks = 0;

function equal(found, expected) {
  if (!isDeepStrictEqual(found, expected)) {
    throw new Error(`${inspect(found)} instead of ${inspect(expected)}`);
  }
  checks += 1;
}

async function fails(code, action) {
  let error;
  try {
    await action();
  } catch (raised) {
    error = raised;
  }
  if (!error) throw new Error(`error ${code} expected`);
  if (code !== null && error.code !== code) throw error;
  checks += 1;
  return error;
}

/** Calls the action with a client and the names of the commands that it sends. */
async function connected(options, action) {
  const client = new MongoClient(uri, { monitorCommands: true, ...options });
  const sent = [];
  client.on("commandStarted", (event) => sent.push(event.commandName));
  try {
    await action(client, sent);
  } finally {
    await client.close();
  }
}

const documents = () => connected({}, async (client, sent) => {
  const db = client.db("clients");
  equal((await db.command({ ping: 1 })).ok, 1);
  equal((await db.admin().buildInfo()).versionArray[0], 7);
  await db.dropDatabase();
  const things = db.collection("things");
  await crud(things);
  await cursors(db, things, sent);
  await indexes(things);
  await aggregation(db, things);
  await bulkWrites(db.collection("bulk"));
});

async function crud(things) {
  equal((await things.insertOne({ _id: 0, a: 0 })).insertedId, 0);
  const many = range(1, 1000).map((n) => ({ _id: n, a: n % 7 }));
  equal((await things.insertMany(many)).insertedCount, 999);
  await fails(11000, () => things.insertOne({ _id: 1 }));
  equal(await things.findOne({ _id: 8 }), { _id: 8, a: 1 });
  equal(await things.countDocuments({ a: 3 }), 143);
  equal(await things.estimatedDocumentCount(), 1000);
  equal((await things.distinct("a")).sort(), range(0, 7));
  const updated = await things.updateOne({ _id: 1 }, { $set: { "b.c": 1 }, $inc: { a: 10 } });
  equal([updated.matchedCount, updated.modifiedCount], [1, 1]);
  equal(await things.findOne({ _id: 1 }), { _id: 1, a: 11, b: { c: 1 } });
  equal((await things.updateMany({ a: 2 }, { $push: { l: 1 } })).modifiedCount, 143);
  const replaced = await things.replaceOne({ _id: "new" }, { r: 1 }, { upsert: true });
  equal(replaced.upsertedId, "new");
  const after = { returnDocument: "after" };
  const found = await things.findOneAndUpdate({ _id: "new" }, { $mul: { r: 5 } }, after);
  equal(found, { _id: "new", r: 5 });
  equal(await things.findOneAndDelete({ _id: "new" }), { _id: "new", r: 5 });
  equal((await things.deleteMany({ _id: { $gte: 990 } })).deletedCount, 10);
}

async function cursors(db, things, sent) {
  sent.length = 0;
  const all = await things.find().sort({ _id: -1 }).batchSize(100).toArray();
  equal(all.map((thing) => thing._id), range(0, 990).reverse());
  equal(sent, ["find", ...Array(9).fill("getMore")]);
  const left = things.find({}, { batchSize: 2 });
  await left.next();
  await left.close();
  equal(sent.at(-1), "killCursors");
  const opened = (await db.command({ find: "things", batchSize: 2 })).cursor.id;
  const killed = await db.command({ killCursors: "things", cursors: [opened] });
  equal(killed.cursorsKilled, [opened]);
  await fails(43, () => db.command({ getMore: opened, collection: "things" }));
}

async function indexes(things) {
  equal(await things.createIndex({ a: 1, _id: -1 }), "a_1__id_-1");
  const few = await things.find({ a: 3, _id: { $lt: 20 } }).toArray();
  equal(few.map((thing) => thing._id), [17, 10, 3]);
  const plan = (await things.find({ a: 3 }).explain()).queryPlanner.winningPlan.inputStage;
  equal([plan.stage, plan.indexName], ["IXSCAN", "a_1__id_-1"]);
  equal(await things.createIndex({ u: 1 }, { unique: true, sparse: true }), "u_1");
  await things.insertOne({ _id: "u", u: 5 });
  await fails(11000, () => things.insertOne({ u: 5 }));
  const names = async () => (await things.indexes()).map((index) => index.name).sort();
  equal(await names(), ["_id_", "a_1__id_-1", "u_1"]);
  await things.dropIndex("u_1");
  equal(await names(), ["_id_", "a_1__id_-1"]);
  await things.deleteOne({ _id: "u" });
}

async function aggregation(db, things) {
  const totals = await things.aggregate([
    { $match: { a: { $lt: 3 } } },
    { $group: { _id: "$a", n: { $sum: 1 }, most: { $max: "$_id" } } },
    { $sort: { _id: 1 } },
  ]).toArray();
  equal(totals, [
    { _id: 0, n: 142, most: 987 },
    { _id: 1, n: 141, most: 988 },
    { _id: 2, n: 142, most: 989 },
  ]);
  await db.collection("names").insertMany(range(0, 7).map((n) => ({ _id: n, name: String(n) })));
  const joined = await things.aggregate([
    { $match: { _id: 10 } },
    { $lookup: { from: "names", localField: "a", foreignField: "_id", as: "names" } },
    { $unwind: "$names" },
    { $replaceWith: { name: "$names.name" } },
  ]).toArray();
  equal(joined, [{ name: "3" }]);
  const batches = things.aggregate([{ $project: { a: 1 } }], { batchSize: 50 });
  equal((await batches.toArray()).length, 990);
}

async function bulkWrites(bulk) {
  const result = await bulk.bulkWrite([
    { insertOne: { document: { _id: 1 } } },
    { updateOne: { filter: { _id: 1 }, update: { $set: { x: 1 } } } },
    { replaceOne: { filter: { _id: 2 }, replacement: { y: 1 }, upsert: true } },
    { deleteOne: { filter: { _id: 1 } } },
  ]);
  equal([result.insertedCount, result.modifiedCount, result.deletedCount], [1, 1, 1]);
  equal(result.upsertedIds, { 2: 2 });
  const twice = [5, 5, 6].map((n) => ({ insertOne: { document: { _id: n } } }));
  const error = await fails(11000, () => bulk.bulkWrite(twice, { ordered: false }));
  equal(error.result.insertedCount, 2);
  equal(error.writeErrors.map((one) => [one.index, one.code]), [[1, 11000]]);
}

const retries = () => connected({}, async (client, sent) => {
  const inSet = "setName" in (await client.db("admin").command({ hello: 1 }));
  const things = client.db("clients").collection("retried");
  await things.drop();
  await things.insertOne({ _id: 1 });
  const fail = async (data) => {
    const mode = { times: 1 };
    await client.db("admin").command({ configureFailPoint: "failCommand", mode, data });
    sent.length = 0;
  };
  for (const trouble of [{ closeConnection: true }, { errorCode: 11600 }]) {
    await fail({ failCommands: ["find"], ...trouble });
    equal(await things.findOne(), { _id: 1 });
    equal(sent, ["find", "find"]);
  }
  await fail({ failCommands: ["find"], errorCode: 2 });
  await fails(2, () => things.findOne());
  equal(sent, ["find"]);
  await fail({ failCommands: ["insert"], closeConnection: true });
  if (inSet) {
    await things.insertOne({ _id: 2 });
    equal(sent, ["insert", "insert"]);
    await fail({ failCommands: ["update"], errorCode: 91, errorLabels: ["RetryableWriteError"] });
    equal((await things.updateOne({ _id: 2 }, { $inc: { n: 1 } })).modifiedCount, 1);
    equal(sent, ["update", "update"]);
    equal(await things.find().toArray(), [{ _id: 1 }, { _id: 2, n: 1 }]);
  } else {
    const error = await fails(null, () => things.insertOne({ _id: 2 }));
    equal(error.name, "MongoNetworkError");
    equal(sent, ["insert"]);
    equal(await things.find().toArray(), [{ _id: 1 }]);
  }
});

const roundTrip = () => connected({}, async (client) => {
  const packed = client.db("clients").collection("packed");
  await packed.drop();
  await packed.insertMany(range(0, 300).map(() => ({ text: "x".repeat(1000) })));
  const lengths = (await packed.find().toArray()).map((one) => one.text.length);
  equal(lengths.reduce((sum, length) => sum + length), 300_000);
});

async function login() {
  await connected({}, async (stranger) => {
    await fails(13, () => stranger.db("clients").collection("things").insertOne({}));
    const admin = stranger.db("admin");
    await admin.command({ createUser: "root", pwd: "secret", roles: ["root"] });
    await fails(13, () => admin.command({ createUser: "b", pwd: "b", roles: [] }));
  });
  for (const authMechanism of ["DEFAULT", "SCRAM-SHA-1", "SCRAM-SHA-256"]) {
    const as = (password) => ({ auth: { username: "root", password }, authMechanism });
    await connected(as("secret"), async (root) => {
      const status = await root.db("admin").command({ connectionStatus: 1 });
      equal(status.authInfo.authenticatedUsers, [{ user: "root", db: "admin" }]);
    });
    await connected(as("wrong"), (wrong) => fails(18, () => wrong.db("clients").stats()));
  }
  await connected({ auth: { username: "root", password: "secret" } }, async (root) => {
    const db = root.db("clients");
    await db.collection("things").insertOne({ _id: 1 });
    await db.command({ createUser: "reader", pwd: "p\u00e9", roles: ["read"] });
  });
  const reader = { auth: { username: "reader", password: "p\u00e9" }, authSource: "clients" };
  await connected(reader, async (client) => {
    const things = client.db("clients").collection("things");
    equal(await things.findOne(), { _id: 1 });
    await fails(13, () => things.insertOne({}));
  });
}

const certificate = () => connected({}, async (client) => {
  const status = await client.db("admin").command({ connectionStatus: 1 });
  equal(status.authInfo.authenticatedUsers, [{ user: "CN=alice,O=Quorate", db: "$external" }]);
  const things = client.db("clients").collection("things");
  await things.insertOne({ _id: 1 });
  equal(await things.findOne(), { _id: 1 });
  await fails(13, () => client.db("others").collection("things").insertOne({}));
});

const transactions = () => connected({}, async (client) => {
  await client.db("transactions").dropDatabase();
  const accounts = client.db("transactions").collection("accounts");
  await accounts.insertMany([{ _id: "a", n: 10 }, { _id: "b", n: 0 }]);
  const transfer = async (session) => {
    await accounts.updateOne({ _id: "a" }, { $inc: { n: -4 } }, { session });
    await accounts.updateOne({ _id: "b" }, { $inc: { n: 4 } }, { session });
    return "done";
  };
  const balances = async (session) => {
    const found = await accounts.find({}, { session, sort: { _id: 1 } }).toArray();
    return found.map((account) => account.n);
  };
  await client.withSession(async (session) => {
    equal(await session.withTransaction(transfer), "done");
    equal(await balances(), [6, 4]);
    session.startTransaction();
    await transfer(session);
    equal(await balances(session), [2, 8]);
    equal(await balances(), [6, 4]);
    await client.withSession(async (other) => {
      other.startTransaction();
      await fails(112, () => transfer(other));
      await other.abortTransaction();
    });
    await session.abortTransaction();
    equal(await balances(), [6, 4]);
  });
});

async function change(orders) {
  await orders.insertOne({ _id: 1, n: 1 });
  await orders.updateOne({ _id: 1 }, { $inc: { n: 1 } });
  await orders.replaceOne({ _id: 1 }, { r: 1 });
  await orders.deleteOne({ _id: 1 });
}

const take = async (stream, count) => {
  const events = [];
  while (events.length < count) events.push(await stream.next());
  return events;
};

/** Opens a stream and waits for the server's answer, so that it shows all that is written afterwards. */
const opened = async (stream) => {
  await stream.tryNext();
  return stream;
};

const watch = () => connected({}, async (client) => {
  const db = client.db("watched");
  await db.dropDatabase();
  const orders = db.collection("orders");
  const streams = [orders.watch([], { fullDocument: "updateLookup" }), db.watch(), client.watch()];
  for (const stream of streams) await opened(stream);
  await change(orders);
  const events = await take(streams[0], 4);
  equal(events.map((event) => event.operationType), ["insert", "update", "replace", "delete"]);
  equal(events.map((event) => event.documentKey._id), [1, 1, 1, 1]);
  equal(events[0].fullDocument, { _id: 1, n: 1 });
  equal(events[1].updateDescription.updatedFields, { n: 2 });
  for (const stream of streams.slice(1)) {
    const tokens = (await take(stream, 4)).map((event) => event._id);
    equal(tokens, events.map((event) => event._id));
  }
  for (const stream of streams) await stream.close();
  // From the first event on, and across a connection that breaks; here with an iterator.
  const after = orders.watch([{ $match: { operationType: { $ne: "update" } } }], { resumeAfter: events[0]._id });
  const seen = [];
  for await (const event of after) {
    seen.push([event.operationType, event.documentKey._id]);
    if (seen.length === 1) {
      const data = { failCommands: ["getMore"], closeConnection: true };
      await client.db("admin").command({ configureFailPoint: "failCommand", mode: { times: 1 }, data });
      await orders.insertOne({ _id: 2 });
    }
    if (seen.length === 3) break;
  }
  equal(seen, [["replace", 1], ["delete", 1], ["insert", 2]]);
  // A transaction shows nothing before its end, and then all of its changes.
  const stream = await opened(db.watch());
  await client.withSession((session) => session.withTransaction(async () => {
    await orders.insertMany([{ _id: "x" }, { _id: "y" }], { session });
    equal(await stream.tryNext(), null);
  }));
  const both = await take(stream, 2);
  equal(both.map((event) => event.documentKey._id), ["x", "y"]);
  equal(both[0].txnNumber, both[1].txnNumber);
  await orders.drop();
  equal((await stream.next()).operationType, "drop");
  await stream.close();
});

const parts = { documents, transactions, watch, retries, "round-trip": roundTrip, login, certificate };

(async () => {
  for (const part of process.env.QUORATE_PARTS.split(",")) await parts[part]();
  console.log(`checks: ${checks}`);
})().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
