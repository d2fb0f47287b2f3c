// What a page of the tests does with the client. Everything is in `window.seen`, for the test to look at.

window.seen = { notes: [], rows: [], kept: [], resets: 0, errors: [], states: [], transports: new Set() };

/** Follow the stream and the view of the tests' gateway, kept under their names. */
export function follow(connect, options) {
  const { seen } = window;
  const state = ({ phase, transport }) => {
    seen.states.push(phase);
    if (transport) seen.transports.add(transport);
  };
  const penstock = connect(undefined, { ...options, state });
  const error = (each) => seen.errors.push(String(each));
  penstock.follow("streams", "notes", { last: 5_000, keep: "notes" }, {
    snapshot: ({ events }, { kept }) => {
      seen.notes = events.map(({ name }) => name);
      if (kept) seen.kept = [...seen.notes];
    },
    change: ({ events }) => seen.notes.push(...events.map(({ name }) => name)),
    reset: () => seen.resets++,
    error,
  });
  const table = penstock.table("latest", { key: ["name"], keep: "latest" });
  table.watch(() => {
    seen.rows = table.rows.map(({ name, n }) => [name, n]);
    if (table.error) error(table.error);
  });
  window.penstock = penstock;
  window.table = table;
}
