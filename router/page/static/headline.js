// The three figures at the top, the warnings, and the line that says what this router is.

import { by, count, make, mark, percent, say, short, time, timeParts } from "./dom.js";

export function showHeadline(state) {
  share(state.sums);
  firstBytes(state.first_bytes);
  now(state);
  warnings(state.warnings);
  say(by("about"), `${state.version} · verify ${state.verify}`);
  say(
    by("scope"),
    state.is_shared
      ? "This page shows the turns of this router alone; others on the same store have pages of their own."
      : "This page shows the turns of this router, since it started.",
  );
}

function share(sums) {
  const { prompt_tokens: prompt, reused_tokens: reused, moved_tokens: moved } = sums;
  figure(by("share"), prompt ? [percent(reused / prompt).slice(0, -1), "%"] : ["–", ""]);
  const parts = [moved, reused - moved, prompt - reused];
  by("share-bar").querySelectorAll("i").forEach((part, index) => {
    part.style.flexGrow = prompt ? parts[index] / prompt : 0;
    part.hidden = !parts[index];
  });
  if (!prompt) return;
  say(by("share-of"), `${short(reused)} of ${short(prompt)}, since the router started`);
  mark(
    by("share-bar"),
    "aria-label",
    `${count(moved)} tokens came back from decode, ${count(reused - moved)} were still held, ${count(prompt - reused)} were computed`,
  );
}

function firstBytes(seen) {
  figure(by("with"), timeParts(seen?.with_s));
  by("with-bar").style.width = seen ? width(seen.with_s, seen) : "0";
  by("without-bar").style.width = seen ? width(seen.without_s, seen) : "0";
  if (!seen) {
    say(by("sooner"), "");
    say(by("without"), "median of turns that reused something");
    return;
  }
  const factor = seen.without_s / seen.with_s;
  say(by("sooner"), factor >= 1.05 ? `≈ ${factor.toFixed(1)}× sooner` : "");
  const turns = seen.turns === 1 ? "1 turn" : `${count(seen.turns)} turns`;
  say(by("without"), `≈ ${time(seen.without_s)} without, an estimate (medians of ${turns})`);
}

function width(seconds, seen) {
  return `${(100 * seconds) / Math.max(seen.with_s, seen.without_s)}%`;
}

function now(state) {
  say(by("open"), count(state.open_turns));
  say(by("waiting"), state.waiting_turns ? `${count(state.waiting_turns)} wait for a place` : "");
  say(by("turns"), count(state.sums.turns));
  say(by("failed"), count(state.sums.failed));
  mark(by("failed"), "data-some", state.sums.failed ? "" : null);
  say(by("left"), count(state.sums.left));
  const pinned = state.nodes.reduce((sum, node) => sum + (node.pinned_tokens ?? 0), 0);
  say(by("pinned"), short(pinned));
}

function figure(element, [number, unit]) {
  if (element.dataset.shown === number + unit) return;
  element.dataset.shown = number + unit;
  element.replaceChildren(number, make("span", "unit", unit));
}

const WORDS = { error: "Error", warning: "Warning", note: "Note" };
let shownWarnings = "";

function warnings(found) {
  const key = JSON.stringify(found);
  if (key === shownWarnings) return;
  shownWarnings = key;
  by("warnings").hidden = found.length === 0;
  by("warning-list").replaceChildren(
    ...found.map(({ level, text }) => {
      const item = make("li", "warning", make("b", "", WORDS[level] ?? level), make("span", "", text));
      item.dataset.level = level;
      return item;
    }),
  );
}
