const { MongoClient } = require("mongodb");

async function transfer(uri) {
  const client = new MongoClient(uri);
  const accounts = client.db("bank").collection("accounts");
  const rich = { _id: "ann", balance: { $gte: 5 } };
  // It runs the work again after a conflict or a failover, and repeats a commit whose answer was lost.
  await client.withSession((session) => session.withTransaction(async () => {
    const taken = await accounts.updateOne(rich, { $inc: { balance: -5 } }, { session });
    if (taken.modifiedCount === 0) throw new Error("ann has less than 5");
    await accounts.updateOne({ _id: "bob" }, { $inc: { balance: 5 } }, { session });
  }));
  await client.close();
}

transfer(process.argv[2]);
