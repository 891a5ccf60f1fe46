// Conversations as they run: a bar for each turn, as high as its prompt is long.

import { by, clock, count, make, mark, say, time } from "./dom.js";
import { fly, nameOf } from "./pool.js";

const MAX_KEPT = 200; // conversations
const MAX_DRAWN = 40;
const MAX_TURNS = 32; // of one conversation

const kept = new Map(); // by line, the one used last at the end
const flown = new Set(); // turns whose KV was seen to come back
let running = new Map(); // by turn
let longest = 0; // prompt of any turn, in tokens

/** Forget everything: another router, or the same one started again. */
export function reset() {
  for (const one of kept.values()) one.row?.element.remove();
  kept.clear();
  flown.clear();
  running = new Map();
  longest = 0;
}

/** Take in turns that have ended. `isFresh` is false for those that ended before we came. */
export function addTurns(turns, { isFresh }) {
  const touched = new Set();
  for (const turn of turns) {
    const one = touch(turn.line);
    one.turns.push(turn);
    longest = Math.max(longest, turn.prompt_tokens ?? 0);
    if (one.turns.length > MAX_TURNS) one.turns.shift();
    touched.add(one);
    if (isFresh) {
      if (!flown.delete(turn.turn)) back(turn);
      if (turn.status === 200 && turn.prefill && turn.plan !== "stay") fly("out", turn.prefill, turn.decode, turn.prompt_tokens ?? 0);
    }
  }
  arrange();
  for (const one of touched) draw(one, { isFresh });
}

/** Show which turns are open now. */
export function showRunning(open) {
  const before = new Set([...running.values()].map((turn) => turn.line));
  running = new Map(open.map((turn) => [turn.turn, turn]));
  for (const turn of open) {
    touch(turn.line);
    const isReading = turn.phase !== "plan" && turn.phase !== "wait" && turn.phase !== "verify";
    if (isReading && (turn.plan === "pull" || turn.plan === "local") && !flown.has(turn.turn)) {
      flown.add(turn.turn);
      fly("back", turn.prefill, turn.decode, turn.prompt_tokens ?? 0);
    }
  }
  if (flown.size > 2_000) flown.clear();
  arrange();
  const now = new Set(open.map((turn) => turn.line));
  for (const line of new Set([...before, ...now])) {
    if (kept.has(line)) draw(kept.get(line), { isFresh: false });
  }
}

function back(turn) {
  if (turn.moved_tokens) fly("back", turn.prefill, turn.decode, turn.moved_tokens);
}

function touch(line) {
  const one = kept.get(line) ?? { line, turns: [], row: null, isOpen: false };
  kept.delete(line);
  kept.set(line, one);
  if (kept.size > MAX_KEPT) {
    const [oldest, gone] = kept.entries().next().value;
    gone.row?.element.remove();
    kept.delete(oldest);
  }
  return one;
}

/** The newest conversations have rows. New ones come in on top; the others keep their places. */
function arrange() {
  const newest = new Set([...kept.keys()].slice(-MAX_DRAWN));
  const list = by("conversations");
  for (const one of kept.values()) {
    if (newest.has(one.line) && !one.row) {
      one.row = newRow(one);
      list.prepend(one.row.element);
      draw(one, { isFresh: false });
    } else if (!newest.has(one.line) && one.row && !one.isOpen) {
      one.row.element.remove();
      one.row = null;
    }
  }
  by("empty").hidden = kept.size > 0;
  say(by("conversation-count"), kept.size ? `${kept.size >= MAX_KEPT ? "the newest " : ""}${count(kept.size)}` : "");
  const hidden = kept.size - list.childElementCount;
  by("more-conversations").hidden = hidden <= 0;
  say(by("more-conversations"), `${count(hidden)} more were quiet for longer.`);
}

// -- one conversation ---------------------------------------------------------

let rows = 0;

function newRow(one) {
  const id = `detail-${(rows += 1)}`;
  const toggle = make("button", "toggle", one.line || "no history");
  toggle.type = "button";
  toggle.setAttribute("aria-expanded", "false");
  toggle.setAttribute("aria-controls", id);
  toggle.title = "Show its turns as a table";
  const where = make("span", "where");
  const doing = make("span", "doing");
  const plan = make("span", "plan");
  const strip = make("div", "strip");
  strip.setAttribute("role", "img");
  const latest = make("div", "latest");
  const detail = make("div", "detail");
  detail.id = id;
  detail.hidden = true;
  toggle.addEventListener("click", () => {
    one.isOpen = !one.isOpen;
    toggle.setAttribute("aria-expanded", String(one.isOpen));
    detail.hidden = !one.isOpen;
    mark(element, "data-open", one.isOpen ? "" : null);
    drawDetail(one);
  });
  const element = make("li", "conversation", make("div", "who", toggle, where, doing, plan), strip, latest, detail);
  return { element, where, doing, plan, strip, latest, detail, drawn: new Map() };
}

function draw(one, { isFresh }) {
  if (!one.row) return;
  const open = [...running.values()].filter((turn) => turn.line === one.line);
  const last = one.turns.at(-1);
  const place = open.at(-1) ?? last;
  say(one.row.where, place?.decode ? [place.prefill, place.decode].filter(Boolean).map(nameOf).join(" → ") : "");
  drawStrip(one, open, isFresh);
  drawLatest(one.row, last, open.at(-1));
  drawDetail(one);
}

function drawStrip(one, open, isFresh) {
  const { strip, drawn } = one.row;
  // Its own scale, but for short conversations: beside long ones they are to look short.
  const highest = Math.max(1, longest / 3, ...[...one.turns, ...open].map((turn) => turn.prompt_tokens ?? 0));
  const wanted = [...one.turns, ...open].slice(-MAX_TURNS);
  const columns = new Map();
  for (const turn of wanted) {
    const isOpen = turn.began_ms !== undefined;
    const column = drawn.get(turn.turn) ?? make("div", "turn");
    fillColumn(column, turn, isOpen, highest);
    if (isFresh && !isOpen && column.dataset.running !== undefined) column.classList.add("fresh");
    mark(column, "data-running", isOpen ? "" : null);
    columns.set(turn.turn, column);
  }
  for (const [turn, column] of drawn) if (!columns.has(turn)) column.remove();
  [...columns.values()].forEach((column, index) => {
    if (strip.children[index] !== column) strip.insertBefore(column, strip.children[index] ?? null);
  });
  one.row.drawn = columns;
  const last = one.turns.at(-1);
  mark(
    strip,
    "aria-label",
    `${one.turns.length} turns${last?.prompt_tokens ? `; the last one reused ${count(last.reused_tokens ?? 0)} of ${count(last.prompt_tokens)} prompt tokens` : ""}`,
  );
}

function fillColumn(column, turn, isOpen, highest) {
  const prompt = turn.prompt_tokens ?? 0;
  const scale = (tokens) => `${(100 * tokens) / highest}%`;
  const key = `${isOpen} ${prompt} ${turn.reused_tokens} ${highest}`;
  if (column.dataset.key === key) return;
  column.dataset.key = key;
  if (isOpen) {
    const ghost = make("i");
    ghost.style.height = prompt ? scale(prompt) : "12%";
    column.replaceChildren(ghost);
    mark(column, "title", `${turn.plan || "planning"}, running`);
    return;
  }
  const reused = turn.reused_tokens ?? 0;
  const moved = turn.moved_tokens ?? 0;
  const parts = [["computed", prompt - reused], ["held", reused - moved], ["moved", moved]];
  const segments = parts.filter(([, tokens]) => tokens > 0).map(([name, tokens]) => {
    const segment = make("i", name);
    segment.style.height = `max(${scale(tokens)}, 2px)`;
    return segment;
  });
  if (!segments.length) {
    const stub = make("i", "computed");
    stub.style.height = "4px";
    segments.push(stub);
  }
  column.replaceChildren(...segments);
  mark(column, "data-failed", hasFailed(turn) ? "" : null);
  mark(column, "title", titleOf(turn));
}

const hasFailed = (turn) => turn.ended_by === "fault" || turn.ended_by === "router" || turn.status >= 500;

function titleOf(turn) {
  const parts = [`${turn.plan}, ${turn.reason}`];
  if (turn.prompt_tokens != null) parts.push(`${count(turn.reused_tokens ?? 0)} of ${count(turn.prompt_tokens)} reused`);
  if (turn.is_stream && turn.first_byte_s != null) parts.push(`first token after ${time(turn.first_byte_s)}`);
  if (turn.without_s != null) parts.push(`≈ ${time(turn.without_s)} without`);
  if (turn.status !== 200) parts.push(`status ${turn.status}`);
  return parts.join(" · ");
}

const PHASES = {
  plan: "planning", wait: "waiting for a place", verify: "verifying", prefill: "prefill leg",
  between: "prefill leg done", first_token: "decode leg", stream: "answering", done: "done",
};

function drawLatest({ plan, doing, latest }, last, open) {
  const kind = open?.plan || last?.plan || "…";
  say(plan, kind);
  mark(plan, "data-reuses", ["pull", "local", "stay"].includes(kind) ? "" : null);
  mark(plan, "data-failed", !open && last && hasFailed(last) ? "" : null);
  say(doing, open ? PHASES[open.phase] ?? open.phase : outcome(last));
  if (!last) {
    latest.replaceChildren(make("span", "muted", "first turn"));
    return;
  }
  const tokens = make("span", "", make("strong", "", count(last.reused_tokens ?? 0)), ` of ${count(last.prompt_tokens)} back`);
  const took = make("span", "");
  if (last.is_stream && last.first_byte_s != null) {
    took.append(make("strong", "", time(last.first_byte_s)));
    if (last.without_s != null) took.append(make("span", "muted", `  ≈ ${time(last.without_s)} without`));
  } else {
    took.append(make("span", "muted", `${time(last.total_s)} in all`));
  }
  latest.replaceChildren(tokens, took);
}

function outcome(turn) {
  if (hasFailed(turn)) return `failed, status ${turn.status}`;
  if (turn.ended_by === "client") return "client left";
  if (turn.status !== 200) return `status ${turn.status}`;
  return turn.reason.replaceAll("_", " ");
}

const HEAD = [
  ["Ended", ""], ["Plan", "text"], ["Reason", "text"], ["Nodes", "text"], ["Prompt", ""], ["Came back", ""],
  ["Held", ""], ["Computed", ""], ["First token", ""], ["≈ without", ""], ["Answer", ""], ["Status", ""],
];

function drawDetail(one) {
  if (!one.isOpen) {
    one.row.detail.replaceChildren();
    return;
  }
  const head = make("tr", "", ...HEAD.map(([text, name]) => {
    const cell = make("th", name, text);
    cell.scope = "col";
    return cell;
  }));
  const body = one.turns.map((turn) => {
    const moved = turn.moved_tokens;
    const held = turn.reused_tokens == null ? null : turn.reused_tokens - (moved ?? 0);
    const computed = turn.prompt_tokens == null ? null : turn.prompt_tokens - (turn.reused_tokens ?? 0);
    const cells = [
      clock(turn.ended_ms), turn.plan, turn.reason, [turn.prefill, turn.decode].filter(Boolean).map(nameOf).join(" → "),
      count(turn.prompt_tokens), count(moved), count(held), count(computed),
      turn.is_stream ? time(turn.first_byte_s) : "–", time(turn.without_s), count(turn.completion_tokens), String(turn.status),
    ];
    return make("tr", "", ...cells.map((text, index) => make("td", HEAD[index][1], text)));
  });
  const caption = make("caption", "", `Turns of ${one.line || "requests without a history"}, oldest first. Tokens, but for the times.`);
  one.row.detail.replaceChildren(make("table", "", caption, make("thead", "", head), make("tbody", "", ...body)));
}
