// A card for each member: what it is, how it does, and the buttons that break and mend it.

import { svg } from "/graph.js";
import { drawSpark } from "/plots.js";
import { broken, lag, role, span } from "/words.js";

/** How long a second press is waited for. */
const SURE_MS = 3000;

const ACTIONS = [
  { name: "step-down", label: "Step down", sure: false, may: (m) => m.role === "primary" && !broken(m) },
  { name: "kill", label: "Kill", sure: true, may: (m) => m.process?.state !== "gone" },
  { name: "pause", label: "Pause", sure: true, may: (m) => m.process?.state === "running" },
  { name: "partition", label: "Partition", sure: true, may: (m) => m.process?.state === "running" },
  { name: "restore", label: "Restore", sure: false, main: true, may: (m) => m.process && m.process.state !== "running" },
];

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export class Members {
  #root;
  #perform;
  #cards = new Map();

  /** `perform(action, address)` carries an action out; null if the set is not ours to break. */
  constructor(root, perform) {
    this.#root = root;
    this.#perform = perform;
  }

  draw(view) {
    for (const [address, card] of this.#cards) {
      if (!view.members.some((member) => member.address === address)) {
        card.root.remove();
        this.#cards.delete(address);
      }
    }
    for (const member of view.members) {
      let card = this.#cards.get(member.address);
      if (!card) {
        card = this.#make(member.address);
        this.#cards.set(member.address, card);
        this.#root.append(card.root);
      }
      this.#update(card, member);
    }
  }

  #make(address) {
    const card = { facts: new Map(), buttons: new Map() };
    card.chip = element("span", { class: "chip" });
    card.list = element("dl", { class: "facts" });
    card.spark = svg("svg", { class: "spark", "aria-hidden": "true" });
    card.rtt = element("b");
    card.trouble = element("p", { class: "trouble" });
    card.root = element("article", { class: "card member", id: `member-${address}`, tabindex: "-1", "aria-label": address },
      element("header", {}, element("h3", {}, address), card.chip),
      card.list,
      element("div", { class: "spark-row" }, card.spark, element("span", {}, "Round trip", card.rtt)),
      card.trouble);
    if (this.#perform) {
      const bar = element("div", { class: "actions", role: "group", "aria-label": `Break or mend ${address}` });
      for (const action of ACTIONS) bar.append(this.#button(card, action, address));
      card.root.append(bar);
    }
    return card;
  }

  #button(card, action, address) {
    const button = element("button", { type: "button", "data-action": action.name }, action.label);
    if (action.main) button.classList.add("main");
    let timer = 0;
    const calm = () => {
      clearTimeout(timer);
      button.classList.remove("sure");
      button.textContent = action.label;
    };
    button.addEventListener("click", () => {
      if (action.sure && !button.classList.contains("sure")) {
        button.classList.add("sure");
        button.textContent = `${action.label}? Press again`;
        timer = setTimeout(calm, SURE_MS);
        return;
      }
      calm();
      this.#perform(action.name, address);
    });
    button.addEventListener("blur", calm);
    card.buttons.set(action, button);
    return button;
  }

  #update(card, member) {
    card.chip.textContent = role(member);
    card.chip.dataset.role = member.role;
    card.chip.toggleAttribute("data-broken", broken(member) !== null);
    const peers = member.peers_asked ? `${member.peers_up} of ${member.peers_asked}` : null;
    const pool = member.pool ? `${member.pool.in_use} of ${member.pool.total} in use` : null;
    const state = member.process?.how?.replace(/^it (was )?/, "").replace(/ by signal 9$/, "") ?? member.process?.state;
    const process = member.process ? `${member.process.pid} ${state}` : null;
    this.#facts(card, [
      ["Replication", lag(member.lag_ms)],
      ["Copies from", member.sync_source],
      ["Heard by peers", peers],
      ["Votes, priority", member.votes == null ? null : `${member.votes}, ${member.priority ?? "–"}`],
      ["Connections of ours", pool],
      ["Process", process],
    ]);
    drawSpark(card.spark, member.rtt_history_ms);
    card.rtt.textContent = span(member.rtt_ms);
    const reason = member.dropped ?? member.error;
    card.trouble.hidden = !reason;
    card.trouble.classList.toggle("past", Boolean(member.recovered));
    if (reason) card.trouble.textContent = `${member.recovered ? "Was: " : ""}${reason.reason.split(";")[0]}, ${span(reason.age_ms)} ago`;
    for (const [action, button] of card.buttons) {
      const may = Boolean(action.may(member));
      button.hidden = !may;
    }
  }

  #facts(card, facts) {
    for (const [name, value] of facts) {
      let entry = card.facts.get(name);
      if (!entry) {
        entry = { root: element("div", {}, element("dt", {}, name)), value: element("dd") };
        entry.root.append(entry.value);
        card.facts.set(name, entry);
        card.list.append(entry.root);
      }
      entry.value.textContent = value ?? "–";
      entry.value.title = value ?? "";
    }
  }
}
