// What an administrator types into mongosh, on members that are given as MEMBERS (host:port, comma
// separated). The last one is no member at first.

const hosts = process.env.MEMBERS.split(",");
const [newcomer] = hosts.slice(-1);
const first = hosts.slice(0, -1);

function check(condition, what) {
  if (!condition) throw new Error(`not so: ${what}`);
}

// mongosh's rs commands go wherever `db` does.
function on(host) {
  db = new Mongo(`mongodb://${host}/?directConnection=true`).getDB("admin");
}

function wait(what, look) {
  const end = Date.now() + 60_000;
  while (Date.now() < end) {
    const found = look();
    if (found) return found;
    sleep(20);
  }
  throw new Error(`waited in vain: ${what}`);
}

function primary() {
  return wait("a primary", () => {
    for (const host of hosts) {
      on(host);
      if (db.hello().isWritablePrimary) return host;
    }
  });
}

// What a printing command prints.
function printed(command) {
  const lines = [];
  const log = console.log;
  console.log = (...words) => lines.push(words.map(String).join(" "));
  try {
    const result = command();
    if (result !== undefined && result !== null) lines.push(EJSON.stringify(result.value ?? result));
  } finally {
    console.log = log;
  }
  return lines.join("\n");
}

on(first[0]);
const members = first.map((host, _id) => ({ _id, host }));
check(rs.initiate({ _id: "rs0", members }).ok === 1, "rs.initiate");
let leader = primary();
check(leader === first[0], "the member that was initiated leads");

wait("two secondaries", () => rs.status().members.filter((m) => m.stateStr === "SECONDARY").length === 2);
const status = rs.status();
check(status.ok === 1 && status.set === "rs0" && status.myState === 1, "rs.status");
check(status.members.filter((m) => m.health === 1).length === 3, "all healthy");
const config = rs.conf();
check(config._id === "rs0" && config.members.length === 3, "rs.conf");
check(config.settings.electionTimeoutMillis === 10000, "the default settings are shown");
check(config.members[0].priority === 1 && config.members[0].votes === 1, "the defaults of members");
check(rs.isMaster().setName === "rs0" && rs.hello().setName === "rs0", "rs.hello");

for (let n = 0; n < 20; n++) {
  db.getSiblingDB("shop").orders.insertOne({ n }, { writeConcern: { w: 3, wtimeout: 30_000 } });
}
const oplog = printed(() => rs.printReplicationInfo());
check(/oplog first event time/.test(oplog), `rs.printReplicationInfo: ${oplog}`);
check(/actual oplog size/.test(oplog), `rs.printReplicationInfo: ${oplog}`);
const lag = printed(() => rs.printSecondaryReplicationInfo());
for (const host of first.slice(1)) check(lag.includes(host), `rs.printSecondaryReplicationInfo: ${lag}`);
const info = db.getReplicationInfo();
check(info.logSizeMB > 0 && info.usedMB >= 0 && info.tFirst, "db.getReplicationInfo");

check(rs.add(newcomer).ok === 1, "rs.add");
wait("the newcomer to follow", () =>
  rs.status().members.find((m) => m.name === newcomer)?.stateStr === "SECONDARY");
check(rs.conf().members.length === 4, "rs.conf after rs.add");

on(newcomer);
db.getMongo().setReadPref("secondaryPreferred");
check(db.getSiblingDB("shop").orders.countDocuments() === 20, "the newcomer has copied everything");
const other = first.find((host) => host !== leader);
check(rs.syncFrom(other).ok === 1, "rs.syncFrom");
wait("the new source", () =>
  rs.status().members.find((m) => m.name === newcomer).syncSourceHost === other);
check(rs.freeze(120).ok === 1, "rs.freeze");
check(rs.freeze(0).ok === 1, "rs.freeze(0)");

on(leader);
let refused;
try { rs.freeze(60); } catch (error) { refused = error; }
check(refused && refused.code === 95, `rs.freeze on a primary: ${refused}`);
wait("rs.remove", () => {
  try {
    return rs.remove(newcomer).ok === 1;
  } catch (error) {
    // The member that was added last still counts as new for a moment.
    check([103, 308].includes(error.code), `rs.remove: ${error}`);
  }
});
check(rs.conf().members.length === 3, "rs.conf after rs.remove");

// The last write of the configuration must have spread before the primary may go.
check(rs.stepDown(60, 30).ok === 1, "rs.stepDown");
const next = wait("another primary", () => {
  const now = primary();
  return now !== leader ? now : undefined;
});
on(next);
check(db.getSiblingDB("shop").orders.countDocuments() === 20, "nothing is lost");
db.getSiblingDB("shop").orders.insertOne({ n: 20 }, { writeConcern: { w: "majority", wtimeout: 30_000 } });

const set = new Mongo(`mongodb://${first.join(",")}/?replicaSet=rs0`);
check(set.getDB("shop").orders.countDocuments() === 21, "through the set");
print("the shell is content");
