// Mongoose against the server: its transactions and its streams. Argument: the connection string; QUORATE_PARTS:
// the parts.

"use strict";

const { isDeepStrictEqual, inspect } = require("node:util");
const mongoose = require("mongoose");

let checks = 0;

function equal(found, expected) {
  if (!isDeepStrictEqual(found, expected)) {
    throw new Error(`${inspect(found)} instead of ${inspect(expected)}`);
  }
  checks += 1;
}

const Account = mongoose.model("Account", new mongoose.Schema({ _id: String, n: Number }));
const Order = mongoose.model("Order", new mongoose.Schema({ _id: Number, n: Number }));

async function transactions() {
  await mongoose.connection.dropDatabase();
  await Account.create([{ _id: "a", n: 10 }, { _id: "b", n: 0 }]);
  const balances = async (session) => {
    const found = await Account.find().session(session ?? null).sort({ _id: 1 });
    return found.map((account) => account.n);
  };
  const move = async (session) => {
    const giver = await Account.findById("a").session(session);
    giver.n -= 4;
    await giver.save();
    await Account.updateOne({ _id: "b" }, { $inc: { n: 4 } }, { session });
  };
  const session = await mongoose.startSession();
  await session.withTransaction(() => move(session));
  equal(await balances(), [6, 4]);
  // The documents of a transaction that fails go back with it.
  let attempts = 0;
  const refused = await mongoose.connection.transaction(async (inner) => {
    attempts += 1;
    await move(inner);
    equal(await balances(inner), [2, 8]);
    equal(await balances(), [6, 4]);
    throw new Error("no");
  }).catch((error) => error.message);
  equal([refused, attempts], ["no", 1]);
  equal(await balances(), [6, 4]);
  // The library repeats what met a conflict: the other transaction has ended by then.
  const other = await mongoose.startSession();
  other.startTransaction();
  await move(other);
  let tries = 0;
  await session.withTransaction(async () => {
    tries += 1;
    if (tries === 2) await other.commitTransaction();
    await move(session);
  });
  equal([await balances(), tries], [[-2, 12], 2]);
  await other.endSession();
  await session.endSession();
}

async function watch() {
  await mongoose.connection.dropDatabase();
  await Order.createCollection();
  const now = await mongoose.connection.db.command({ ping: 1 });
  const stream = Order.watch([], { startAtOperationTime: now.operationTime });
  const events = [];
  const arrived = new Promise((resolve, reject) => {
    stream.on("error", reject);
    stream.on("change", (event) => {
      if (event.operationType !== "create") events.push(event);
      if (events.length === 3) resolve();
    });
  });
  const order = await Order.create({ _id: 1, n: 1 });
  order.n = 2;
  await order.save();
  await Order.deleteOne({ _id: 1 });
  await arrived;
  equal(events.map((event) => event.operationType), ["insert", "update", "delete"]);
  equal(events[1].updateDescription.updatedFields, { n: 2 });
  await stream.close();
  const after = Order.watch([], { resumeAfter: events[0]._id, hydrate: true, fullDocument: "updateLookup" });
  equal((await after.next()).operationType, "update");
  equal((await after.next()).operationType, "delete");
  await after.close();
}

const parts = { transactions, watch };

(async () => {
  await mongoose.connect(process.argv[2], { dbName: "mongoose" });
  for (const part of process.env.QUORATE_PARTS.split(",")) await parts[part]();
  await mongoose.disconnect();
  console.log(`checks: ${checks}`);
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
