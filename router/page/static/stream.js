// Server-sent events over fetch: EventSource can send no header, and a token has no business in an address.

const SILENT_MS = 25_000; // the router sends something every 10 s
const RETRY_MS = [500, 1_000, 2_000, 4_000, 8_000];

/** Why the router did not let us in. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/**
 * Follow a stream of events until the router refuses us; breaks are mended.
 * `on.frame(data)`, `on.live()`, `on.lost(again_ms)`. Throws Refused for 401 and 403.
 */
export async function follow(url, token, on) {
  for (let failures = 0; ; failures += 1) {
    try {
      await once(url, token, { ...on, live: () => { failures = 0; on.live(); } });
    } catch (error) {
      if (error instanceof Refused) throw error;
    }
    const wait = RETRY_MS[Math.min(failures, RETRY_MS.length - 1)];
    on.lost(wait);
    await new Promise((resolve) => { setTimeout(resolve, wait); });
  }
}

async function once(url, token, on) {
  const abort = new AbortController();
  let silence = setTimeout(() => abort.abort(), SILENT_MS);
  try {
    const headers = token ? { authorization: `Bearer ${token}` } : {};
    const answer = await fetch(url, { headers, signal: abort.signal, cache: "no-store", credentials: "omit" });
    if (answer.status === 401 || answer.status === 403) throw new Refused(answer.status, await told(answer));
    if (!answer.ok) return;
    on.live();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let kept = ""; ;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(() => abort.abort(), SILENT_MS);
      const events = (kept + value).split("\n\n");
      kept = events.pop();
      for (const event of events) {
        if (event.startsWith("data: ")) on.frame(JSON.parse(event.slice(6)));
      }
    }
  } finally {
    clearTimeout(silence);
    abort.abort();
  }
}

async function told(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `status ${answer.status}`;
  }
}
