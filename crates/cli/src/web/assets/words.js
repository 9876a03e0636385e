// Numbers and names as people read them. No state, no drawing.

/** A span in milliseconds: 0.3 ms, 41 ms, 1.5 s, 2 min. */
export function span(ms) {
  if (ms == null) return "–";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 120000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.round(ms / 60000)} min`;
}

/** A count: 84, 1,234. */
export function count(number) {
  if (number == null) return "–";
  return number < 10 && number % 1 ? number.toFixed(1) : Math.round(number).toLocaleString("en");
}

/** What a member is called where there is little room. */
export function shortNames(addresses) {
  const parts = addresses.map((address) => {
    const colon = address.lastIndexOf(":");
    return { host: address.slice(0, colon), port: address.slice(colon) };
  });
  const oneHost = new Set(parts.map((part) => part.host)).size === 1;
  return new Map(addresses.map((address, i) => {
    const name = oneHost ? parts[i].port : parts[i].host.split(".")[0];
    return [address, name.length > 9 ? `${name.slice(0, 8)}…` : name];
  }));
}

/** What is wrong with a member, in a word; null if nothing is. */
export function broken(member) {
  const process = member.process?.state;
  if (process === "gone") return "killed";
  if (process === "paused") return "paused";
  if (process === "partitioned") return "cut off";
  if (member.health === "down") return "out of reach";
  return null;
}

/** The role, for people. */
export function role(member) {
  return broken(member) ?? member.role ?? "unknown";
}

/** How far behind a member is. */
export function lag(ms) {
  if (ms == null) return null;
  return ms < 1 ? "in step" : `${span(ms)} behind`;
}
