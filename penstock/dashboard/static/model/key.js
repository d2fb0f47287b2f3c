// The key of whoever looks at the page, if the app asks for one. It is kept for this tab only, and never in an address.

import { Signal } from "./signal.js";

const PLACE = "penstock.key";

/** The key or null. */
export const key = new Signal(sessionStorage.getItem(PLACE));

export function signIn(text) {
  sessionStorage.setItem(PLACE, text);
  key.value = text;
}

export function signOut() {
  sessionStorage.removeItem(PLACE);
  key.value = null;
}
