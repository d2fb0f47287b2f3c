// What goes over the wire: JSON, and the addresses of the API. Addresses are relative to the page, so the dashboard
// also works below a path of a proxy.

import { headers } from "./key.js";

const LONG_NUMBER = /\d{16}/;

/**
 * JSON.parse that loses no whole number: one past 2^53 is kept as its text. Two keys that differ in the last digit stay
 * two keys. The slower way is taken only when the text has a long run of digits.
 */
export function parse(text) {
  if (!LONG_NUMBER.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value, context) => {
    const unsafe = Number.isInteger(value) && !Number.isSafeInteger(value);
    return unsafe && /^-?\d+$/.test(context?.source ?? "") ? context.source : value;
  });
}

export function address(path) {
  return new URL(path, document.baseURI).href;
}

export function socketAddress(path) {
  return address(path).replace(/^http/, "ws");
}

/** An answer that is a refusal: its status, and the sentence that came with it. */
export class Refused extends Error {
  constructor(status, text) {
    super(detail(text) ?? `${status} ${text.slice(0, 200)}`);
    this.status = status;
  }
}

function detail(text) {
  try {
    return JSON.parse(text).detail ?? null;
  } catch {
    return null;
  }
}

/** GET a JSON answer. Throws when there is none within `timeout_ms`, or `Refused` if its status is not 2xx. */
export async function get(path, timeout_ms) {
  const answer = await fetch(address(path), {
    signal: AbortSignal.timeout(timeout_ms),
    cache: "no-store",
    headers: headers(),
  });
  const text = await answer.text();
  if (!answer.ok) throw new Refused(answer.status, text);
  return parse(text);
}
