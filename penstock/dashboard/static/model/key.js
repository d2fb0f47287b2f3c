// The reader's key, if the app requires one. It is stored for this tab only, and is never part of a URL.

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
