// Writes through the Node driver until standard input ends, and answers each line of it after some
// more writes. No error may be seen, and nothing acknowledged may be missing: the set is broken
// meanwhile by the test that started this.

import { createRequire } from "node:module";

const [uri, modules] = process.argv.slice(2);
const { MongoClient } = createRequire(`${modules}/`)("mongodb");

const client = new MongoClient(uri, { retryWrites: true, serverSelectionTimeoutMS: 60_000 });
const orders = client
  .db("shop")
  .collection("orders", { writeConcern: { w: "majority", wtimeoutMS: 60_000 } });
let stopped = false;
let written = 0;
let goal;
process.stdin.on("data", () => (goal = written + 20)).on("end", () => (stopped = true));
while (!stopped) {
  await orders.insertOne({ _id: written, n: 0 });
  await orders.updateOne({ _id: written }, { $inc: { n: 1 } });
  written += 1;
  if (written === goal) console.log(written);
}
const found = await orders.find({}).sort({ _id: 1 }).toArray();
if (found.length !== written) throw new Error(`${found.length} of ${written} are there`);
found.forEach((order, place) => {
  // A write that was sent twice must count once.
  if (order._id !== place || order.n !== 1) throw new Error(JSON.stringify(order));
});
await client.close();
console.log("content");
