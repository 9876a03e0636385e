// The page: listens to the stream, draws each view, sends actions. Nothing is asked of other hosts.

import { Graph } from "/graph.js";
import { Members, element } from "/members.js";
import { Samples, drawThroughput } from "/plots.js";
import { count, shortNames, span } from "/words.js";

const $ = (id) => document.getElementById(id);
const meta = (name) => document.querySelector(`meta[name="${name}"]`).content;

/** Entries that mark a failover. */
const MARKS = new Set(["elected", "no_primary", "write_gap", "action"]);

/** How long a gap is shown as new. */
const FRESH_MS = 8000;

let latest = null;
let drawnLog = "";
let announced = 0;

const graph = new Graph($("graph"));
const samples = new Samples();
const members = new Members($("members"), meta("quorate-breakable") === "true" ? perform : null);

function draw(view) {
  latest = view;
  drawState(view);
  drawFigures(view);
  graph.draw(view);
  drawThroughput($("throughput"), samples.take(view), view);
  members.draw(view);
  drawLog(view);
}

function drawState(view) {
  const set = view.set;
  $("set-name").textContent = set.name ?? "";
  $("copy").hidden = false;
  document.title = set.primary ? `${set.name ?? "Quorate"}: primary ${set.primary}` : `${set.name ?? "Quorate"}: no primary`;
  const state = set.primary ? "primary" : view.members.some((m) => m.health !== "asking") ? "none" : "asking";
  $("state").dataset.state = state;
  const term = set.term == null ? "" : `, term ${set.term}`;
  const standalone = set.type === "Single" || set.type === "Sharded";
  const leader = view.members.find((member) => member.address === set.primary);
  const votes = set.votes == null ? null : `${set.votes_up} of ${set.votes} votes are up, ${set.votes_needed} elect a primary`;
  if (set.primary) {
    const silent = leader?.silent_ms == null ? "" : `, silent for ${span(leader.silent_ms)}`;
    if (silent) $("state").dataset.state = "none";
    $("headline").textContent = `${set.primary} is primary${silent}`;
    const majority = set.has_majority === false ? votes : `${set.up} of ${set.members} members answer`;
    const open = view.writes.open_gap_ms;
    $("detail").textContent = open > 500 ? `No write acknowledged for ${span(open)}.` : `${majority}${term}.`;
  } else if (standalone) {
    $("headline").textContent = set.type === "Single" ? "One server, no set" : "A sharded deployment";
    $("detail").textContent = `${set.up} of ${set.members} answer.`;
    $("state").dataset.state = set.up ? "primary" : "none";
  } else if (state === "none") {
    const since = set.without_primary_ms == null ? "" : ` for ${span(set.without_primary_ms)}`;
    $("headline").textContent = `No primary${since}`;
    $("detail").textContent = set.incompatible ?? (votes ? `${votes}${term}.` : set.explanation?.split("\n")[0] ?? `${set.up} of ${set.members} members answer${term}.`);
  }
}

function figure(id, text, unit) {
  const parts = unit ? [text, " ", element("small", {}, unit)] : [text];
  $(id).replaceChildren(...parts);
}

function drawFigures(view) {
  const { set, writes } = view;
  figure("figure-writes", count(writes.any ? writes.per_second : set.writes_per_second));
  const gap = writes.gaps[writes.gaps.length - 1];
  const open = writes.open_gap_ms;
  $("gap-title").textContent = open == null ? "Last write gap" : "No write for";
  if (open != null) {
    const [number, unit] = span(open).split(" ");
    figure("figure-gap", number, unit);
  } else if (gap) {
    const [number, unit] = span(gap.ms).split(" ");
    figure("figure-gap", number, unit);
  } else {
    figure("figure-gap", writes.any ? "none" : "–");
  }
  $("figure-gap").classList.toggle("fresh", open != null || Boolean(gap) && (view.t_ns - gap.to_ns) / 1e6 < FRESH_MS);
  figure("figure-elections", String(view.elections.length));
  const words = set.transactions?.words;
  $("transactions").hidden = !words;
  $("transactions").textContent = words ? `${words}.` : "";
  if (set.votes == null) figure("figure-votes", "–");
  else figure("figure-votes", String(set.votes_up), `of ${set.votes}`);
}

function drawLog(view) {
  const only = $("only-marks").checked;
  const entries = view.log.filter((entry) => !only || MARKS.has(entry.kind)).reverse();
  const names = shortNames(view.members.map((member) => member.address));
  const key = `${only}${entries.map((entry) => `${entry.number}x${entry.times}`).join()}`;
  announce(view, names);
  if (key === drawnLog) return;
  drawnLog = key;
  $("log-empty").hidden = entries.length > 0;
  $("log").hidden = entries.length === 0;
  $("log").replaceChildren(...entries.map((entry) => {
    const at = new Date(Date.now() - entry.age_ms);
    const words = element("p");
    if (entry.member) words.append(element("span", { class: "who", title: entry.member }, names.get(entry.member) ?? entry.member), " ");
    words.append(entry.text.split(";")[0]);
    if (entry.times > 1) words.append(element("span", { class: "times" }, ` ${entry.times} times`));
    return element("li", { "data-kind": entry.kind },
      element("time", { datetime: at.toISOString() }, at.toLocaleTimeString("en-GB")),
      element("span", { class: "dot", "aria-hidden": "true" }), words);
  }));
}

/** Says aloud what a person must not miss. */
function announce(view, names) {
  const fresh = view.log.filter((entry) => entry.number > announced && MARKS.has(entry.kind) && entry.kind !== "action");
  const last = view.log[view.log.length - 1];
  const first = announced === 0;
  if (last) announced = Math.max(announced, last.number);
  if (first || fresh.length === 0) return;
  const entry = fresh[fresh.length - 1];
  $("announce").textContent = `${entry.member ? names.get(entry.member) ?? "" : ""} ${entry.text}`;
}

async function perform(action, member) {
  try {
    const reply = await fetch("/actions", {
      method: "POST",
      headers: { "content-type": "application/json", "x-quorate-token": meta("quorate-token") },
      body: JSON.stringify({ action, member }),
    });
    const told = await reply.json();
    toast(told.message, !reply.ok);
  } catch {
    toast("The program that serves this page does not answer.", true);
  }
}

let toastTimer = 0;
function toast(text, bad) {
  const root = $("toast");
  root.textContent = text;
  root.classList.toggle("bad", bad);
  root.classList.add("shown");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => root.classList.remove("shown"), 5000);
}

function listen() {
  const stream = new EventSource("/events");
  // Nothing can be broken through a program that is gone.
  const reach = (reached) => {
    for (const button of document.querySelectorAll(".actions button")) button.disabled = !reached;
  };
  stream.addEventListener("view", (event) => {
    $("banner").hidden = true;
    reach(true);
    draw(JSON.parse(event.data));
  });
  stream.addEventListener("error", () => {
    $("banner").textContent = "The program that serves this page has ended or cannot be reached. What you see is what was last known.";
    $("banner").hidden = false;
    reach(false);
    // The browser tries again by itself, unless it was refused.
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, 2000);
  });
}

const THEMES = { auto: "as the system", light: "light", dark: "dark" };
function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  $("theme").textContent = name[0].toUpperCase() + name.slice(1);
  $("theme").setAttribute("aria-label", `Colours: ${THEMES[name]}`);
  $("theme").dataset.theme = name;
}
theme(Object.hasOwn(THEMES, localStorage.getItem("quorate-theme") ?? "") ? localStorage.getItem("quorate-theme") : "auto");
$("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf($("theme").dataset.theme) + 1) % names.length];
  localStorage.setItem("quorate-theme", next);
  theme(next);
});

$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(latest.uri);
    toast("The connection string is copied.", false);
  } catch {
    toast(latest.uri, false);
  }
});
$("only-marks").addEventListener("change", () => latest && drawLog(latest));
addEventListener("resize", () => latest && drawThroughput($("throughput"), samples.take(latest), latest));
addEventListener("hashchange", () => document.getElementById(decodeURIComponent(location.hash.slice(1)))?.focus({ preventScroll: true }));

listen();
