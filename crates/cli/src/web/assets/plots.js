// Throughput with its elections and gaps, and the sparkline of round trips.

import { svg } from "/graph.js";
import { count, span } from "/words.js";

/** How much of the past is shown. */
const SECONDS = 120;

/** Room for two rows of labels above the curve. */
const TOP = 38;

/** The least room for a gap, in pixels: a few milliseconds must be seen too. */
const LEAST_GAP = 3;

/** Figures of the last two minutes, one a second, the newest last. */
export class Samples {
  #seconds = [];
  #began = null;

  /** Takes the server's own history, or gathers one from what it says now. */
  take(view) {
    if (view.writes.any) return view.writes.history;
    const now = Math.floor(view.t_ns / 1e9);
    if (this.#began === null) this.#began = now;
    while (this.#began + this.#seconds.length <= now) this.#seconds.push(view.set.writes_per_second ?? 0);
    return this.#seconds.slice(-SECONDS);
  }
}

/** A round number at or above the highest figure. */
function ceiling(highest) {
  const power = 10 ** Math.floor(Math.log10(Math.max(highest, 1)));
  return [1, 2, 5, 10].map((step) => step * power).find((top) => top >= highest) ?? highest;
}

export function drawThroughput(root, history, view) {
  const width = root.clientWidth || 600;
  const height = root.clientHeight || 150;
  root.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const floor = height - 1;
  const top = ceiling(Math.max(...history, 1) * 1.05);
  const x = (secondsAgo) => width * (1 - secondsAgo / SECONDS);
  const y = (value) => floor - (floor - TOP) * (value / top);
  const parts = [0, 0.5, 1].flatMap((share) => [
    svg("line", { class: "grid", x1: 0, x2: width, y1: y(top * share), y2: y(top * share) }),
    ...(share ? [svg("text", { class: "tick", x: 0, y: y(top * share) - 5 }, count(top * share))] : []),
  ]);
  const points = history.slice(-SECONDS).map((value, i, all) => `${x(all.length - i - 0.5).toFixed(1)} ${y(value).toFixed(1)}`);
  if (points.length > 1) {
    const line = `M${points.join("L")}`;
    const first = points[0].split(" ")[0];
    const last = points[points.length - 1].split(" ")[0];
    parts.push(svg("path", { class: "area", d: `${line}L${last} ${floor}L${first} ${floor}Z` }));
    parts.push(svg("path", { class: "curve", d: line }));
  }
  const ago = (ns) => (view.t_ns - ns) / 1e9;
  const label = (row, kind, at, text) => {
    const room = 52;
    const middle = Math.min(Math.max(at, room / 2), width - room / 2);
    // The newest is told; an older one that would lie under it is not.
    if (row.used.some((used) => Math.abs(used - middle) < room)) return;
    row.used.push(middle);
    parts.push(svg("text", { class: kind, x: middle, y: row.y }, text));
  };
  const gapRow = { y: 10, used: [] };
  const electionRow = { y: 25, used: [] };
  if (view.writes.open_gap_ms != null) {
    const from = Math.max(x(view.writes.open_gap_ms / 1000), 0);
    const wide = Math.max(x(0) - from, LEAST_GAP);
    parts.push(svg("rect", { class: "gap open", x: from, y: 31, width: wide, height: floor - 31 }));
    label(gapRow, "gap-label", from + wide / 2, span(view.writes.open_gap_ms));
  }
  for (const gap of [...view.writes.gaps].reverse()) {
    if (ago(gap.to_ns) > SECONDS) continue;
    const from = Math.max(x(ago(gap.from_ns)), 0);
    const wide = Math.max(x(ago(gap.to_ns)) - from, LEAST_GAP);
    parts.push(svg("rect", { class: "gap", x: from, y: 31, width: wide, height: floor - 31 }));
    label(gapRow, "gap-label", from + wide / 2, span(gap.ms));
  }
  for (const election of [...view.elections].reverse()) {
    if (ago(election.at_ns) > SECONDS) continue;
    const at = x(ago(election.at_ns));
    parts.push(svg("line", { class: "election", x1: at, x2: at, y1: 31, y2: floor }));
    if (election.term != null) label(electionRow, "election-label", at, `term ${election.term}`);
  }
  root.replaceChildren(...parts);
}

/** Round trips of one member; a bar where it did not answer. */
export function drawSpark(root, history) {
  const [width, height] = [240, 36];
  root.setAttribute("viewBox", `0 0 ${width} ${height}`);
  root.setAttribute("preserveAspectRatio", "none");
  const shown = history.slice(-60);
  const highest = Math.max(...shown.map((value) => value ?? 0), 0.5);
  const step = width / Math.max(shown.length - 1, 1);
  const parts = [];
  let line = "";
  shown.forEach((value, i) => {
    if (value == null) {
      parts.push(svg("rect", { x: i * step - step / 2, y: 0, width: step, height }));
      return;
    }
    const joined = i > 0 && shown[i - 1] != null;
    line += `${joined ? "L" : "M"}${(i * step).toFixed(1)} ${(height - 2 - (height - 6) * (value / highest)).toFixed(1)}`;
  });
  parts.push(svg("path", { d: line || "M0 0" }));
  root.replaceChildren(...parts);
}
