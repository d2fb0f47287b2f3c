// The types that are served say the same as those in the client's modules. Checked, with the modules themselves, by
// `npx -p typescript@5 tsc -p penstock/dashboard/static/client`.

import * as written from "../../../penstock/dashboard/static/client/penstock.js";
import type * as served from "../../../penstock/dashboard/static/penstock.js";

export const connect: typeof served.connect = written.connect;
export const options: Parameters<typeof written.connect> = null as unknown as Parameters<typeof served.connect>;

// as a page would use them
const wall = { transports: ["sse" as const], backoff: { cap_ms: 5_000 }, pauseHidden: true };
const penstock = connect("https://plant.example", { key: async () => "key", ...wall });
const table = penstock.table("sales", { key: ["product"], order: (a, b) => a.n - b.n, keep: "sales" });
const stop: () => void = table.watch(() => table.rows.map(({ product }) => product));
const subscription = penstock.follow("streams", "orders", { last: 10 }, { change: async ({ events }) => events.length });
subscription.filter({ where: "pieces > 1" });
stop();
// @ts-expect-error a table needs its key
penstock.table("sales", {});
// @ts-expect-error there is no such kind
penstock.follow("stream", "orders");
