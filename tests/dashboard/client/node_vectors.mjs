// node node_vectors.mjs PENSTOCK_JS VECTORS_FOLDER: prints what is not as the vectors say, as JSON.

import { readFile, readdir } from "node:fs/promises";
import { pathToFileURL } from "node:url";
import { check } from "./vectors.mjs";

const [module, folder] = process.argv.slice(2);
const client = await import(pathToFileURL(module));
const names = (await readdir(folder)).filter((name) => name.endsWith(".json"));
const read = async (name) => [name.replace(".json", ""), JSON.parse(await readFile(`${folder}/${name}`, "utf8"))];
const failures = await check(client, Object.fromEntries(await Promise.all(names.map(read))));
console.log(JSON.stringify(failures));
process.exit(); // timers of clients that a failure left behind
