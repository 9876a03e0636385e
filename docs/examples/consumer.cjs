const { existsSync, readFileSync, renameSync, writeFileSync } = require("node:fs");
const { MongoClient } = require("mongodb");

async function follow(uri, place) {
  const client = new MongoClient(uri);
  const start = existsSync(place) ? { resumeAfter: JSON.parse(readFileSync(place, "utf8")) } : {};
  const stream = client.db("shop").collection("orders").watch([], start);
  for await (const event of stream) {
    console.log(event.operationType, event.documentKey._id);
    // Stored after the work: what is interrupted in between is seen again, and nothing is missed.
    writeFileSync(`${place}.new`, JSON.stringify(event._id));
    renameSync(`${place}.new`, place);
  }
}

follow(process.argv[2], process.argv[3]);
