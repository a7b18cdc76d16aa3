// A handler of scheduled events for one VM, for Node.js 18 or newer with only built-in modules. Copy it, and adapt it.
//
//     node handler.mjs [MARKER]
//
// The VM counts as prepared while the file MARKER (default: `drained`) exists. Put your own work into `prepare` and
// `recover`. If a reboot interrupts one of them, it is called again. The endpoint provides the VM's name, spelled as in
// Resources.

import { existsSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

const BASE = "http://169.254.169.254/metadata/";
const EVENTS = BASE + "scheduledevents?api-version=2020-07-01";
const NAME = BASE + "instance/compute/name?api-version=2021-02-01&format=text";
const MARKER = process.argv[2] ?? "drained";
const AGENT = new http.Agent(); // never through a proxy, and a new connection for each request

// Send a GET, or a POST with a body. Throws if no complete answer arrives in time, or if the status is not 200.
async function ask(url, body, timeoutMs = 10_000) {
  const options = { agent: AGENT, headers: { Metadata: "true" }, method: body === undefined ? "GET" : "POST" };
  options.signal = AbortSignal.timeout(timeoutMs);
  const answer = await new Promise((resolve, reject) => {
    http.request(url, options, resolve).on("error", reject).end(body);
  });
  const pieces = [];
  for await (const piece of answer) pieces.push(piece);
  if (answer.statusCode !== 200) throw new Error(`status ${answer.statusCode}`);
  return Buffer.concat(pieces).toString();
}

// Get the VM ready for an interruption: drain, fail over, save. Return when the VM is ready.
async function prepare() {
  writeFileSync(MARKER, "");
}

// Put the VM back into service.
async function recover() {
  rmSync(MARKER, { force: true });
}

// Prepare, approve or recover, as the document requires. Throws if the document has no Events.
async function handle(document, name, approved) {
  const mine = document.Events.filter((event) => event.Resources.includes(name));
  if (mine.length > 0 && !existsSync(MARKER)) await prepare();
  for (const event of mine) {
    if (event.EventStatus === "Scheduled" && !approved.has(event.EventId)) {
      await ask(EVENTS, JSON.stringify({ StartRequests: [{ EventId: event.EventId }] }));
      approved.add(event.EventId); // only after 200: an approval without an answer is sent again
    }
  }
  if (mine.length === 0 && existsSync(MARKER)) await recover();
}

const approved = new Set();
let name = "";
let timeoutMs = 130_000; // the first answer may take two minutes
while (true) {
  try {
    const document = JSON.parse(await ask(EVENTS, undefined, timeoutMs));
    timeoutMs = 10_000;
    name = name || (await ask(NAME));
    await handle(document, name, approved);
  } catch (error) {
    console.log("no usable answer:", error.message); // the VM keeps its state
  }
  await sleep(1000);
}
