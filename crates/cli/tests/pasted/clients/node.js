// One operation with the driver for Node.js or with Mongoose; prints its error.
const [, , library, uri, operation] = process.argv;
const found = require(library);

async function withDriver() {
  const client = new found.MongoClient(uri);
  await client.connect();
  const orders = client.db("shop").collection("orders");
  if (operation === "insert") await orders.insertOne({ x: 1 });
  else await orders.find().toArray();
}

async function withMongoose() {
  await found.connect(uri);
  const Order = found.model("orders", new found.Schema({ x: Number }));
  if (operation === "insert") await Order.create({ x: 1 });
  else await Order.find();
}

const shown = (error) => String(error.stack ?? error).split("\n    at ")[0];

(found.Schema ? withMongoose() : withDriver())
  .then(() => console.log("no error"))
  .catch((error) => {
    console.log(shown(error));
    if (error.cause?.stack) console.log("  [cause]: " + shown(error.cause));
  })
  .finally(() => process.exit());
