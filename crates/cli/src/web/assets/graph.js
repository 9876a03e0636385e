// The set as a graph: members on a circle, heartbeats between them, arrows to those that copy.

import { broken, lag, role, shortNames } from "/words.js";

const SVG = "http://www.w3.org/2000/svg";
const DISC = 36;

/** So many members stand close together: their discs are smaller. */
const MANY = 6;
const SMALL_DISC = 27;

/** The canvas: wide on a desk, narrow on a phone, so that letters keep their size. */
const WIDE = { width: 640, height: 356, across: 200 };
const NARROW = { width: 380, height: 356, across: 138 };

/** Below this many pixels the narrow canvas is used. */
const NARROW_BELOW = 480;

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Where member number i of n stands. The first is at the top. */
function place(i, n, canvas) {
  const centre = { x: canvas.width / 2, y: canvas.height / 2 - 10 };
  if (n === 1) return centre;
  const angle = -Math.PI / 2 + (2 * Math.PI * i) / n;
  const across = n < 4 ? canvas.across : canvas.width / 2 - 76;
  const lift = n === 3 ? 30 : 0;
  return { x: centre.x + across * Math.cos(angle), y: centre.y + lift + 122 * Math.sin(angle) };
}

/** A point that lies `by` beyond `from` on the way to `to`. */
function towards(from, to, by) {
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  return { x: from.x + ((to.x - from.x) / length) * by, y: from.y + ((to.y - from.y) / length) * by };
}

export class Graph {
  #root;
  #nodes = new Map();
  #ages = new Map();
  #lines = svg("g");
  #discs = svg("g");
  #drawn = "";

  constructor(root) {
    this.#root = root;
    root.append(this.#lines, this.#discs);
  }

  draw(view) {
    const members = view.members;
    const names = shortNames(members.map((member) => member.address));
    const canvas = this.#root.clientWidth < NARROW_BELOW ? NARROW : WIDE;
    this.#root.setAttribute("viewBox", `0 0 ${canvas.width} ${canvas.height}`);
    const places = new Map(members.map((member, i) => [member.address, place(i, members.length, canvas)]));
    const disc = members.length < MANY ? DISC : SMALL_DISC;
    this.#drawLines(members, places, { x: canvas.width / 2, y: canvas.height / 2 }, disc);
    for (const [address, node] of this.#nodes) {
      if (!places.has(address)) {
        node.remove();
        this.#nodes.delete(address);
      }
    }
    for (const member of members) this.#drawNode(member, places.get(member.address), names, disc);
  }

  #drawLines(members, places, centre, disc) {
    const lines = [];
    const whole = new Map(members.map((member) => [member.address, broken(member) === null]));
    members.forEach((one, i) => members.slice(i + 1).forEach((other) => {
      const heard = whole.get(one.address) && whole.get(other.address);
      const [from, to] = [places.get(one.address), places.get(other.address)];
      lines.push(["line", { class: heard ? "edge" : "edge broken", x1: from.x, y1: from.y, x2: to.x, y2: to.y }]);
    }));
    for (const member of members) {
      const from = places.get(member.sync_source);
      const to = places.get(member.address);
      if (!from || !whole.get(member.address) || !whole.get(member.sync_source)) continue;
      const middle = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 };
      // Bent, so that it does not lie on the heartbeat. Up to three members have no other between them;
      // from four on the others stand on the outside, and the way is inside.
      const bend = towards(middle, centre, members.length < 4 ? -46 : 24);
      const start = towards(from, bend, disc + 4);
      const end = towards(to, bend, disc + 13);
      const tip = towards(to, bend, disc + 5);
      const path = `M${start.x} ${start.y}Q${bend.x} ${bend.y} ${end.x} ${end.y}`;
      lines.push(["path", { class: "sync", d: path }], ["head", { tip, end }], ["flow", { path }]);
      const text = lag(member.lag_ms);
      if (text) lines.push(["lag", { x: (middle.x + bend.x) / 2, y: (middle.y + bend.y) / 2 + 4, text }]);
    }
    // Drawn anew only when something moved: restarting the flow would make it stutter.
    const key = JSON.stringify(lines);
    if (key === this.#drawn) return;
    this.#drawn = key;
    this.#lines.replaceChildren(...lines.map(([kind, a]) => this.#line(kind, a)));
  }

  #line(kind, a) {
    if (kind === "head") {
      const across = { x: (a.tip.y - a.end.y) * 0.62, y: (a.end.x - a.tip.x) * 0.62 };
      const points = [a.tip, { x: a.end.x + across.x, y: a.end.y + across.y }, { x: a.end.x - across.x, y: a.end.y - across.y }];
      return svg("polygon", { class: "sync-head", points: points.map((p) => `${p.x},${p.y}`).join(" ") });
    }
    if (kind === "flow") {
      const dot = svg("circle", { class: "flow", r: 3.2 });
      dot.append(svg("animateMotion", { path: a.path, dur: "1.6s", repeatCount: "indefinite" }));
      return dot;
    }
    if (kind === "lag") return svg("text", { class: "lag", x: a.x, y: a.y }, a.text);
    return svg(kind, a);
  }

  #drawNode(member, at, names, disc) {
    let node = this.#nodes.get(member.address);
    if (!node) {
      node = svg("a", { class: "node", href: `#member-${member.address}` },
        svg("circle", { class: "halo" }), svg("circle", { class: "disc" }),
        svg("text", { class: "name" }), svg("text", { class: "role" }));
      this.#nodes.set(member.address, node);
      this.#discs.append(node);
    }
    node.querySelector(".halo").setAttribute("r", disc + 2);
    node.querySelector(".disc").setAttribute("r", disc);
    node.querySelector(".role").setAttribute("y", disc + 21);
    node.setAttribute("transform", `translate(${at.x} ${at.y})`);
    node.dataset.role = member.role;
    node.toggleAttribute("data-small", disc === SMALL_DISC);
    node.toggleAttribute("data-broken", broken(member) !== null);
    node.querySelector(".name").textContent = names.get(member.address);
    node.querySelector(".role").textContent = role(member);
    const behind = lag(member.lag_ms);
    node.setAttribute("aria-label", [member.address, role(member), behind].filter(Boolean).join(", "));
    // A younger answer than before is a heartbeat that came back.
    const age = member.hello_age_ms;
    const before = this.#ages.get(member.address);
    this.#ages.set(member.address, age);
    if (age != null && before != null && age < before) {
      node.classList.remove("beat");
      void node.getBoundingClientRect();
      node.classList.add("beat");
    }
  }
}
