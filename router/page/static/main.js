// Follows the router's events, and hands each to the parts of the page.

import { addTurns, reset, showRunning } from "./conversations.js";
import { by, clock, mark, say } from "./dom.js";
import { showHeadline } from "./headline.js";
import { showPool } from "./pool.js";
import { Refused, follow } from "./stream.js";

const TOKEN = "boomerang-admin-token";
const EVENTS = new URL("page/events", document.baseURI);

let startedMs = 0;
let newest = 0; // number of the newest turn that was shown
let seenMs = 0;
let hasCaughtUp = false;

function frame({ now_ms: nowMs, turns = [], state = null }) {
  seenMs = nowMs;
  if (state && state.started_ms !== startedMs) {
    startedMs = state.started_ms;
    newest = 0;
    hasCaughtUp = false;
    reset();
  }
  if (state) {
    showHeadline(state);
    showPool(state);
  }
  const unseen = turns.filter((turn) => turn.number > newest);
  if (unseen.length) {
    newest = unseen.at(-1).number;
    addTurns(unseen, { isFresh: hasCaughtUp });
  }
  if (state) showRunning(state.running);
  hasCaughtUp = true;
}

function connection(state, text) {
  mark(by("connection"), "data-state", state);
  say(by("connection"), text);
  mark(by("shown"), "data-stale", state === "lost" ? "" : null);
}

async function watch(token) {
  if (/[^\x21-\x7e]/.test(token)) {
    refused(new Refused(401), token); // no header can carry it
    return;
  }
  by("ask").hidden = true;
  by("shown").hidden = false;
  try {
    await follow(EVENTS, token, {
      frame,
      live: () => connection("live", "Live"),
      lost: () => {
        hasCaughtUp = false;
        connection("lost", seenMs ? `Connection lost; as of ${clock(seenMs)}` : "No connection; trying again");
      },
    });
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    refused(error, token);
  }
}

function refused(error, token) {
  sessionStorage.removeItem(TOKEN);
  by("shown").hidden = true;
  if (error.status === 401) {
    connection("connecting", "Locked");
    say(by("ask-problem"), token ? "That is not its token." : "");
    by("ask").hidden = false;
    by("token").focus();
  } else {
    connection("lost", error.message);
  }
}

by("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = by("token").value.trim();
  by("token").value = "";
  sessionStorage.setItem(TOKEN, token);
  watch(token);
});

watch(sessionStorage.getItem(TOKEN) ?? "");
