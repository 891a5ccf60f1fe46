// The nodes as boxes, and KV on its way between them.

import { by, count, make, mark, percent, say, short, time } from "./dom.js";

const MAX_NODES_OF_ROLE = 64;
const DENSE_FROM = 7;
const MAX_LEGS_DRAWN = 12;
const MAX_FLIGHTS = 40;
const MAX_LANES = 48;
const LANE_MS = 8_000;

const boxes = new Map(); // by node key
const names = new Map(); // P1, D2: as long as the page lives, a node keeps its name
const counted = { prefill: 0, decode: 0 };
const lanes = new Map(); // "p d" to its path element and when it was used last
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** What a node is called on this page. */
export function nameOf(key) {
  return names.get(key) ?? key;
}

export function showPool(state) {
  const sides = { prefill: [], decode: [] };
  for (const node of state.nodes) sides[node.role]?.push(node);
  for (const [role, nodes] of Object.entries(sides)) {
    for (const node of nodes) {
      if (!names.has(node.node)) names.set(node.node, `${role === "prefill" ? "P" : "D"}${(counted[role] += 1)}`);
    }
    side(role, nodes, state);
  }
  latest = state.nodes;
  nodeTable();
  const hidden = state.more_nodes + Object.values(sides).reduce((n, side) => n + Math.max(side.length - MAX_NODES_OF_ROLE, 0), 0);
  by("more-nodes").hidden = !hidden;
  say(by("more-nodes"), `${count(hidden)} more nodes are not drawn.`);
}

let latest = [];

/** The same in words, where somebody wants it. */
function nodeTable() {
  if (!by("node-details").open) return;
  by("node-rows").replaceChildren(
    ...latest.map((node) => {
      const cells = [
        nameOf(node.node), node.node.slice(2), STATES[node.state] ?? node.state, count(node.in_flight), count(node.running),
        count(node.waiting), time(node.queue_s), percent(node.kv_usage), count(node.pinned_tokens), count(node.pinned_handles),
        percent(node.pinned_share), node.version ?? "–", node.state === "ready" ? "" : node.reason,
      ];
      const isText = (index) => index < 3 || index === cells.length - 1;
      return make("tr", "", ...cells.map((text, index) => make("td", isText(index) ? "text" : "", text)));
    }),
  );
}

function side(role, nodes, state) {
  const list = by(role);
  const ready = nodes.filter((node) => node.state === "ready").length;
  say(by(`${role}-count`), nodes.length ? `${ready} of ${nodes.length} ready` : "no nodes");
  // What is amiss is drawn in any case.
  const drawn = new Set([...nodes].sort((a, b) => (a.state === "ready") - (b.state === "ready")).slice(0, MAX_NODES_OF_ROLE));
  const shown = nodes.filter((node) => drawn.has(node));
  mark(list, "data-dense", shown.length >= DENSE_FROM ? "" : null);
  mark(list, "data-single", shown.length === 1 ? "" : null);
  const keys = new Set(shown.map((node) => node.node));
  for (const [key, box] of boxes) {
    if (box.role === role && !keys.has(key)) {
      box.element.remove();
      boxes.delete(key);
    }
  }
  shown.forEach((node, index) => {
    const box = boxes.get(node.node) ?? newBox(node);
    if (list.children[index] !== box.element) list.insertBefore(box.element, list.children[index] ?? null);
    fill(box, node, state.pin_budget);
  });
}

function newBox(node) {
  const key = make("span", "node-key", node.node.slice(2));
  const state = make("span", "word");
  const legs = make("span", "legs");
  const load = make("span", "");
  const right = make("span", "right");
  const pinned = make("i", "pinned");
  const used = make("i", "used");
  const budget = make("i", "budget");
  const meter = make("div", "meter", pinned, used, budget);
  const why = make("p", "node-why");
  const element = make(
    "li",
    "node",
    make("div", "node-head", make("span", "node-name", nameOf(node.node)), key, make("span", "node-state", state)),
    make("div", "node-load", legs, load, right),
    ...(node.role === "decode" ? [meter] : []),
    why,
  );
  meter.setAttribute("role", "meter");
  meter.setAttribute("aria-valuemin", "0");
  meter.setAttribute("aria-valuemax", "100");
  const box = { role: node.role, element, state, legs, load, right, meter, pinned, used, budget, why };
  boxes.set(node.node, box);
  return box;
}

const STATES = { ready: "ready", starting: "starting", draining: "draining", ejected: "down", gone: "gone" };

function fill(box, node, budget) {
  mark(box.element, "data-state", node.state);
  mark(box.element, "title", node.state === "ready" ? node.node : `${node.node}: ${node.state}, ${node.reason}`);
  say(box.state, STATES[node.state] ?? node.state);
  const drawn = Math.min(node.in_flight, MAX_LEGS_DRAWN);
  while (box.legs.childElementCount > drawn) box.legs.lastElementChild.remove();
  while (box.legs.childElementCount < drawn) box.legs.append(make("i"));
  say(box.load, node.in_flight ? `${count(node.in_flight)} ${node.in_flight === 1 ? "leg" : "legs"}` : "idle");
  if (node.role === "prefill") {
    say(box.right, node.queue_s >= 0.1 ? `queue ≈ ${time(node.queue_s)}` : "");
  } else {
    fillPins(box, node, budget);
  }
  box.why.hidden = node.state === "ready" || !node.reason;
  say(box.why, node.reason);
}

function fillPins(box, node, budget) {
  const share = node.pinned_share;
  say(box.right, node.pinned_tokens == null ? "" : `${short(node.pinned_tokens)} pinned${share == null ? "" : ` · ${percent(share)}`}`);
  const pinned = Math.min(share ?? 0, 1);
  box.pinned.style.width = `${100 * pinned}%`;
  box.used.style.width = `${100 * Math.max(Math.min(node.kv_usage ?? 0, 1) - pinned, 0)}%`;
  box.budget.style.left = `${100 * budget}%`;
  mark(box.meter, "aria-valuenow", Math.round(100 * pinned));
  mark(box.meter, "aria-label", `Share of the KV of ${nameOf(node.node)} that is pinned; the budget is ${percent(budget)}`);
  mark(box.meter, "title", share == null ? "how much KV it has is not known" : `${percent(share)} pinned, budget ${percent(budget)}`);
}

// -- KV on its way -----------------------------------------------------------

/** Draw tokens that move from one node to another: `way` is "out" (P to D) or "back" (D to P). */
export function fly(way, prefill, decode, tokens) {
  const p = boxes.get(prefill);
  const d = boxes.get(decode);
  if (!p || !d || document.hidden) return;
  const course = courseOf(p.element, d.element);
  lane(prefill, decode, course);
  const flights = by("flights");
  if (still.matches || flights.childElementCount >= MAX_FLIGHTS) return;
  const dot = make("i", `flight ${way}`);
  const size = Math.min(6 + Math.sqrt(tokens) / 18, 15);
  dot.style.width = dot.style.height = `${size}px`;
  dot.style.offsetPath = `path("${course}")`;
  flights.append(dot);
  const distances = way === "out" ? ["0%", "100%"] : ["100%", "0%"];
  const flight = dot.animate(
    [
      { offsetDistance: distances[0], opacity: 0.2 },
      { opacity: 1, offset: 0.15 },
      { opacity: 1, offset: 0.85 },
      { offsetDistance: distances[1], opacity: 0.2 },
    ],
    { duration: 1100, easing: "cubic-bezier(.45, 0, .4, 1)" },
  );
  flight.onfinish = () => dot.remove();
  flight.oncancel = () => dot.remove();
}

function lane(prefill, decode, course) {
  const key = `${prefill} ${decode}`;
  let one = lanes.get(key);
  if (!one) {
    if (lanes.size >= MAX_LANES) return;
    one = { path: document.createElementNS("http://www.w3.org/2000/svg", "path"), prefill, decode, used: 0 };
    by("lanes").append(one.path);
    lanes.set(key, one);
  }
  one.path.setAttribute("d", course);
  one.path.style.opacity = 1;
  one.used = performance.now();
}

function courseOf(p, d) {
  const frame = by("pool").getBoundingClientRect();
  const from = p.getBoundingClientRect();
  const to = d.getBoundingClientRect();
  if (by("decode").getBoundingClientRect().left > by("prefill").getBoundingClientRect().right) {
    const [x0, y0] = [from.right - frame.left, from.top + from.height / 2 - frame.top];
    const [x1, y1] = [to.left - frame.left, to.top + to.height / 2 - frame.top];
    const bend = (x1 - x0) * 0.5;
    return `M ${x0} ${y0} C ${x0 + bend} ${y0} ${x1 - bend} ${y1} ${x1} ${y1}`;
  }
  const [x0, y0] = [from.left + from.width / 2 - frame.left, from.bottom - frame.top];
  const [x1, y1] = [to.left + to.width / 2 - frame.left, to.top - frame.top];
  const bend = (y1 - y0) * 0.5;
  return `M ${x0} ${y0} C ${x0} ${y0 + bend} ${x1} ${y1 - bend} ${x1} ${y1}`;
}

function ageLanes() {
  for (const [key, one] of lanes) {
    const idle = performance.now() - one.used;
    if (idle > 2 * LANE_MS || !boxes.has(one.prefill) || !boxes.has(one.decode)) {
      one.path.remove();
      lanes.delete(key);
    } else if (idle > LANE_MS) {
      one.path.style.opacity = 0;
    }
  }
}

function redrawLanes() {
  for (const one of lanes.values()) {
    const [p, d] = [boxes.get(one.prefill), boxes.get(one.decode)];
    if (p && d) one.path.setAttribute("d", courseOf(p.element, d.element));
  }
}

by("node-details").addEventListener("toggle", nodeTable);
setInterval(ageLanes, 1000);
new ResizeObserver(redrawLanes).observe(by("pool"));
