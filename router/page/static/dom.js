// Elements and numbers. Nothing here takes HTML: what engines and clients wrote is text, and stays text.

export const by = (id) => document.getElementById(id);

/** An element with a class and children; strings become text. */
export function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** Writes only what has changed, so that nothing is laid out anew, or read out, for nothing. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function mark(element, name, value) {
  if (value === null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

const whole = new Intl.NumberFormat("en");
const LANGUAGE_GAP = "\u202f";

export const count = (n) => (n == null ? "–" : whole.format(n));

/** 980, 12.3k, 4.5M: for places where a number has to be short. */
export function short(n) {
  if (n == null) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (n >= size) {
      const scaled = unit === "k" ? n / 1e3 : n / size;
      return `${scaled >= 100 ? Math.round(scaled) : scaled.toFixed(1)}${unit}`;
    }
  }
  return whole.format(Math.round(n));
}

/** Number and unit of a time: 316 ms, 1.24 s. */
export function timeParts(seconds) {
  if (seconds == null) return ["–", ""];
  if (seconds < 1) return [String(Math.round(seconds * 1e3)), "ms"];
  return [seconds < 10 ? seconds.toFixed(2) : seconds.toFixed(1), "s"];
}

export function time(seconds) {
  const [number, unit] = timeParts(seconds);
  return unit ? `${number}${LANGUAGE_GAP}${unit}` : number;
}

export function percent(share) {
  if (share == null) return "–";
  const value = share * 100;
  return `${value > 99 && value < 100 ? 99 : Math.round(value)}%`;
}

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
