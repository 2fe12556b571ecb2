// The dashboard: follows GET /v1/events and shows what it says. Every text goes
// into the page as text, never as markup: names of trajectories are anybody's.
"use strict";

const $ = (id) => document.getElementById(id);

// h makes an element. Attributes that are undefined or false are left out.
function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  set(node, attributes);
  node.append(...children);
  return node;
}

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === undefined || value === false || value === null) node.removeAttribute(name);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
  return node;
}

function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

// named is foreign text that cannot turn the direction of what is around it.
const named = (value) => h("bdi", {}, value);

function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

function time(ms) {
  if (ms < 10) return `${ms.toFixed(ms < 1 ? 2 : 1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  const minutes = Math.floor(ms / 60000);
  if (minutes < 60) return `${minutes} min ${Math.round((ms % 60000) / 1000)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function age(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

// --- what is known

const windowSeconds = 300;
const state = {
  at: Date.now(), // the server's time
  pools: [],
  containers: new Map(),
  seconds: new Map(),
  load: new Map(), // by second, since this page is open: {held, queue}
  slowest: [],
  dispatch: { sent: 0, waiting: 0 },
};

// kinds are what a slot is shown as, with the sign that stands for it beside
// its colour.
const kinds = {
  free: { sign: "", name: "free" },
  leased: { sign: "●", name: "leased, idle" },
  executing: { sign: "▶", name: "executing" },
  resetting: { sign: "↻", name: "resetting" },
  quarantined: { sign: "✕", name: "quarantined" },
  starting: { sign: "…", name: "starting" },
  draining: { sign: "↓", name: "draining" },
};

function kindOf(slot) {
  if (slot.state === "quarantined") return "quarantined";
  if (slot.releasing || slot.state === "resetting") return "resetting";
  // The state of a slot is some seconds old; of calls by way of this
  // orchestrator it is known at once.
  if (slot.running > 0 || slot.state === "executing" && !slot.lease) return "executing";
  if (slot.state === "starting") return "starting";
  if (slot.state === "draining" || slot.state === "closed") return "draining";
  return slot.lease ? "leased" : "free";
}

function take(name, event) {
  state.at = Date.parse(event.at);
  state.pools = event.pools;
  state.dispatch = event.dispatch;
  if (name === "full") {
    state.containers.clear();
    state.seconds.clear();
    state.slowest = event.slowest ?? [];
  }
  for (const container of event.containers) state.containers.set(container.id, container);
  for (const id of event.gone ?? []) state.containers.delete(id);
  for (const second of event.seconds) state.seconds.set(second.unix, second);
  if (event.slowest) state.slowest = event.slowest;
  const now = Math.floor(state.at / 1000);
  const sum = (field) => state.pools.reduce((n, pool) => n + pool[field], 0);
  // An event may be late by a second: what was true before it is true for that.
  const before = state.load.get(now - 2);
  if (before && !state.load.has(now - 1)) state.load.set(now - 1, before);
  state.load.set(now, { held: sum("acquired"), queue: sum("queue") });
  for (const of of [state.seconds, state.load]) {
    for (const unix of of.keys()) if (unix < now - windowSeconds) of.delete(unix);
  }
  show();
}

// --- showing it

function show() {
  showTiles();
  showCharts();
  showContainers();
  showQuarantine();
  showSlowest();
  showSlotDialog();
}

function slots() {
  const all = [];
  for (const container of state.containers.values()) for (const slot of container.slots) all.push({ container, slot });
  return all;
}

function showTiles() {
  const sum = (field) => state.pools.reduce((n, pool) => n + pool[field], 0);
  const quarantined = slots().filter(({ slot }) => slot.state === "quarantined").length;
  const oldest = Math.max(0, ...state.pools.map((pool) => pool.oldest_s));
  const now = Math.floor(state.at / 1000);
  let calls = 0, faults = 0, last;
  for (const [unix, second] of state.seconds) {
    if (unix >= now - 10) { calls += second.calls; faults += second.faults; }
    if (second.calls && (!last || unix > last.unix)) last = second;
  }
  const total = sum("slots");
  text($("tile-held"), String(sum("acquired")));
  text($("tile-held-note"), `of ${plural(total, "slot")} in ${plural(state.containers.size, "container")}`);
  text($("tile-free"), String(sum("available")));
  showTrouble(sum("starting") ? `${plural(sum("starting"), "container")} starting` : "");
  text($("tile-queue"), String(sum("queue")));
  text($("tile-queue-note"), oldest ? `the first waits ${time(oldest * 1000)}` : state.dispatch.waiting ? `${plural(state.dispatch.waiting, "call")} to be sent` : "");
  text($("tile-rate"), (calls / 10).toFixed(calls < 100 ? 1 : 0));
  text($("tile-rate-note"), `${state.dispatch.sent} under way` + (faults ? `, ${plural(faults, "fault")}` : ""));
  text($("tile-p50"), last ? time(last.p50_ms) : "–");
  text($("tile-p50-note"), last ? `p99 ${time(last.p99_ms)}` : "");
  text($("tile-quarantined"), String(quarantined));
  text($("tile-quarantined-note"), quarantined ? "could not be proven clean" : "");
  $("tile-quarantined-box").classList.toggle("alarm", quarantined > 0);
}

// showTrouble says why there are no more slots; otherwise what else there is to
// say.
function showTrouble(otherwise) {
  const words = state.pools.find((pool) => pool.trouble)?.trouble.words;
  const note = $("tile-free-note"), short = words && (words.length > 160 ? words.slice(0, 160) + "…" : words);
  if (!words) text(note, otherwise);
  else if (note.textContent !== `no container starts: ${short}`) note.replaceChildren("no container starts: ", named(short));
  note.title = words ?? "";
  $("tile-free-box").classList.toggle("alarm", Boolean(words));
}

// Chart draws lines over the last five minutes. lines: [{name, of(second),
// area}]; scale maps a value to 0..1; nothing is drawn where of is undefined.
class Chart {
  constructor(id, lines, say) {
    this.figure = $(id);
    this.lines = lines;
    this.say = say;
    this.plot = this.figure.querySelector(".plot");
    this.output = this.figure.querySelector("output");
    this.top = h("span", { class: "top" });
    this.bottom = h("span", { class: "bottom" });
    this.svg = svg("svg", { viewBox: `0 0 ${windowSeconds} 100`, preserveAspectRatio: "none", role: "img" });
    for (const line of lines) {
      if (line.area) this.svg.append(line.fill = svg("path", { class: `area c-${line.name}` }));
      this.svg.append(line.path = svg("path", { class: `c-${line.name}` }));
    }
    this.cursor = svg("path", { class: "cursor" });
    this.svg.append(this.cursor);
    this.plot.append(this.svg, this.top, this.bottom);
    this.plot.addEventListener("pointermove", (event) => {
      const box = this.plot.getBoundingClientRect();
      this.hover = Math.round((event.clientX - box.left) / box.width * windowSeconds);
      this.point();
    });
    this.plot.addEventListener("pointerleave", () => { this.hover = undefined; this.point(); });
  }

  draw(now, at, scale, top, bottom) {
    this.now = now;
    this.at = at;
    for (const line of this.lines) {
      let d = "", area = "", from = 0, open = false;
      const close = (x) => { if (open) area += `L${x} 100L${from} 100Z`; open = false; };
      for (let x = 0; x < windowSeconds; x++) {
        const second = at(now - windowSeconds + x);
        const value = second && line.of(second);
        if (value === undefined) { close(x - 1); continue; }
        const y = (100 - 100 * Math.min(1, Math.max(0, scale(value)))).toFixed(1);
        if (!open) { from = x; d += `M${x} ${y}h.01`; area += `M${x} ${y}`; } else { d += `L${x} ${y}`; area += `L${x} ${y}`; }
        open = true;
      }
      close(windowSeconds - 1);
      line.path.setAttribute("d", d);
      if (line.fill) line.fill.setAttribute("d", area);
    }
    text(this.top, top);
    text(this.bottom, bottom);
    this.point();
  }

  point() {
    const x = this.hover;
    const second = x === undefined ? undefined : this.at?.(this.now - windowSeconds + x);
    this.cursor.setAttribute("d", second ? `M${x} 0V100` : "");
    const shown = second ? `${new Date((this.now - windowSeconds + x) * 1000).toLocaleTimeString()} · ${this.say(second)}` : "";
    text(this.output, shown);
    const latest = this.at?.(this.now - 1) ?? this.at?.(this.now);
    this.svg.setAttribute("aria-label", latest ? `now ${this.say(latest)}` : "no numbers yet");
  }
}

let charts;

function showCharts() {
  charts ??= {
    rate: new Chart("chart-rate", [
      { name: "calls", of: (s) => s.calls, area: true },
      { name: "faults", of: (s) => s.faults || undefined, area: true },
    ], (s) => `${plural(s.calls, "call")}` + (s.faults ? `, ${plural(s.faults, "fault")}` : "")),
    latency: new Chart("chart-latency", [
      { name: "p99", of: (s) => s.calls ? s.p99_ms : undefined },
      { name: "p50", of: (s) => s.calls ? s.p50_ms : undefined },
    ], (s) => s.calls ? `p50 ${time(s.p50_ms)}, p99 ${time(s.p99_ms)}` : "no calls"),
    load: new Chart("chart-load", [
      { name: "held", of: (s) => s.held, area: true },
      { name: "queue", of: (s) => s.queue },
    ], (s) => `${s.held} held, ${s.queue} waiting`),
  };
  const now = Math.floor(state.at / 1000);
  let calls = 1, least = Infinity, most = 0, load = 1;
  for (const second of state.seconds.values()) {
    calls = Math.max(calls, second.calls);
    if (second.calls) { most = Math.max(most, second.p99_ms); least = Math.min(least, second.p50_ms); }
  }
  for (const second of state.load.values()) load = Math.max(load, second.held, second.queue);
  load = Math.max(load, state.pools.reduce((n, pool) => n + pool.slots, 0));
  charts.rate.draw(now, (unix) => state.seconds.get(unix), (v) => v / calls * .94, `${calls}/s`, "");
  // Calls take from a fraction of a millisecond to minutes: a logarithm shows both.
  const low = Math.log(Math.max(.05, least / 1.5)), high = Math.log(Math.max(1, most * 1.1));
  charts.latency.draw(now, (unix) => state.seconds.get(unix), (v) => (Math.log(Math.max(.05, v)) - low) / Math.max(1, high - low), most ? time(most) : "", most ? time(least) : "");
  charts.load.draw(now, (unix) => state.load.get(unix), (v) => v / load * .94, plural(load, "slot"), "");
}

const cards = new Map(); // by container id

function showContainers() {
  const ids = [...state.containers.keys()].sort();
  for (const [id, card] of cards) {
    if (!state.containers.has(id)) { card.node.remove(); cards.delete(id); }
  }
  ids.forEach((id, place) => {
    let card = cards.get(id);
    if (!card) cards.set(id, card = newCard(id));
    if ($("containers").children[place] !== card.node) $("containers").insertBefore(card.node, $("containers").children[place] ?? null);
    updateCard(card, state.containers.get(id));
  });
  $("containers-empty").hidden = ids.length > 0;
  const counts = {};
  for (const { slot } of slots()) counts[kindOf(slot)] = (counts[kindOf(slot)] ?? 0) + 1;
  const entries = Object.entries(kinds).filter(([kind]) => counts[kind] || ["free", "leased", "executing"].includes(kind));
  const key = JSON.stringify(entries.map(([kind]) => [kind, counts[kind]]));
  if ($("legend").dataset.key === key) return;
  $("legend").dataset.key = key;
  $("legend").replaceChildren(...entries.map(([kind, { sign, name }]) =>
    h("li", {}, h("span", { class: "slot", "data-kind": kind, "aria-hidden": "true" }, sign), `${counts[kind] ?? 0} ${name}`)));
}

function newCard(id) {
  const card = { slots: new Map(), name: h("span", { class: "name" }, named(id)), badge: h("span", { class: "badge" }), push: h("span", { class: "push" }) };
  card.failure = h("p", { class: "failure", hidden: "" });
  card.list = h("ul", { class: "slots", "aria-label": `Slots of ${id}` });
  card.cordon = h("button", { type: "button", class: "quiet", onclick: () => cordon(id) }, "Cordon");
  const drain = h("button", { type: "button", class: "quiet", onclick: () => empty(id, "drain") }, "Drain");
  const recycle = h("button", { type: "button", class: "quiet", onclick: () => empty(id, "recycle") }, "Recycle");
  card.drain = drain;
  card.recycle = recycle;
  card.node = h("li", { "data-container": id },
    h("div", { class: "top-line" }, card.name, card.badge, card.push), card.failure, card.list,
    h("div", { class: "row" }, card.cordon, drain, recycle));
  return card;
}

function updateCard(card, container) {
  const draining = container.state === "draining";
  set(card.badge, { "data-state": container.state });
  text(card.badge, container.state);
  text(card.push, `${container.template} · up ${age(state.at - Date.parse(container.started_at))}`);
  card.failure.hidden = !container.failure;
  text(card.failure, container.failure ?? "");
  text(card.cordon, container.state === "cordoned" ? "Uncordon" : "Cordon");
  card.cordon.disabled = card.drain.disabled = card.recycle.disabled = draining;
  const there = new Set();
  for (const slot of container.slots) {
    there.add(slot.slot_id);
    let button = card.slots.get(slot.slot_id);
    if (!button) {
      button = h("button", { type: "button", class: "slot", "data-slot": slot.slot_id, onclick: () => openSlot(container.id, slot.slot_id) });
      card.slots.set(slot.slot_id, button);
      card.list.append(h("li", {}, button));
    }
    const kind = kindOf(slot);
    const label = `${slot.slot_id}: ${kinds[kind].name}` + (slot.trajectory ? `, ${slot.trajectory}` : "");
    set(button, { "data-kind": kind, "aria-label": label, title: label });
    text(button, kinds[kind].sign);
  }
  for (const [id, button] of card.slots) {
    if (!there.has(id)) { button.parentNode.remove(); card.slots.delete(id); }
  }
}

function checksOf(receipt) {
  return h("ul", { class: "checks" }, ...receipt.checks.map((check) =>
    h("li", { class: check.ok ? undefined : "bad" }, `${check.ok ? "✓" : "✕"} ${check.name}${check.note ? `: ${check.note}` : ""}`)));
}

function showQuarantine() {
  const bad = slots().filter(({ slot }) => slot.state === "quarantined");
  $("quarantine").hidden = bad.length === 0;
  const key = JSON.stringify(bad);
  if ($("quarantine-list").dataset.key === key) return;
  $("quarantine-list").dataset.key = key;
  $("quarantine-list").replaceChildren(...bad.map(({ container, slot }) => h("li", {},
    h("div", { class: "top-line" }, h("span", { class: "name" }, named(container.id), " ", slot.slot_id), h("span", { class: "push" }, `generation ${slot.generation}`)),
    h("p", {}, slot.reason || "no reason was given"),
    slot.receipt?.checks ? checksOf(slot.receipt) : "")));
}

const parts = ["acquire", "queue", "dispatch", "spawn", "run", "transfer"];

function showSlowest() {
  $("slowest-empty").hidden = state.slowest.length > 0;
  $("slowest").hidden = state.slowest.length === 0;
  const key = JSON.stringify(state.slowest);
  const list = $("slowest");
  if (list.dataset.key !== key) {
    list.dataset.key = key;
    list.replaceChildren(...state.slowest.map((call) => {
      const shares = parts.filter((part) => call.timing_ms[part] > 0);
      const bar = h("div", { class: "bar", role: "img", "aria-label": shares.map((part) => `${part} ${time(call.timing_ms[part])}`).join(", "), title: shares.map((part) => `${part} ${time(call.timing_ms[part])}`).join(", ") },
        ...shares.map((part) => { const i = h("i", { "data-part": part }); i.style.flexGrow = call.timing_ms[part]; return i; }));
      return h("li", {},
        h("span", { class: "took" }, time(call.took_ms)),
        h("span", { class: "who", title: call.trajectory || call.lease }, call.trajectory ? named(call.trajectory) : h("small", {}, named(call.lease ?? "no slot"))),
        h("span", { class: "tool" }, named(call.tool)), bar,
        h("span", { class: "outcome", "data-bad": call.error_kind ? "" : undefined }, call.error_kind ? `✕ ${call.error_kind}` : call.outcome ?? "done"),
        h("span", { class: "ago", "data-at": Date.parse(call.ended_at) }));
    }));
  }
  for (const node of list.querySelectorAll(".ago")) text(node, `${age(state.at - node.dataset.at)} ago`);
}

// --- one slot

let opened; // [container, slot] that the dialog shows

function openSlot(container, slot) {
  opened = [container, slot];
  showSlotDialog();
  $("slot-dialog").showModal();
}

function showSlotDialog() {
  if (!opened) return;
  const [id, name] = opened;
  const slot = state.containers.get(id)?.slots.find((s) => s.slot_id === name);
  if (!slot) { $("slot-dialog").close(); return; }
  text($("slot-title"), `${name} of ${id}`);
  const facts = [["State", kinds[kindOf(slot)].name], ["Generation", String(slot.generation)]];
  if (slot.lease) facts.push(["Trajectory", named(slot.trajectory)], ["Lease", named(slot.lease)], ["Held for", age(state.at - Date.parse(slot.acquired_at))]);
  if (slot.running) facts.push(["Calls under way", String(slot.running)]);
  if (slot.reason) facts.push(["Reason", slot.reason]);
  if (slot.receipt?.checks) facts.push(["Last reset", checksOf(slot.receipt)]);
  $("slot-facts").replaceChildren(...facts.flatMap(([term, fact]) => [h("dt", {}, term), h("dd", {}, fact)]));
  $("slot-release").hidden = !slot.lease;
  $("slot-release").disabled = Boolean(slot.releasing);
}

$("slot-dialog").addEventListener("close", () => { opened = undefined; });

$("slot-release").addEventListener("click", async () => {
  const [id, name] = opened;
  const slot = state.containers.get(id)?.slots.find((s) => s.slot_id === name);
  $("slot-dialog").close();
  if (!slot?.lease) return;
  if (!await ask(`Release ${name}?`, `Whoever holds it (${slot.trajectory}) loses what is in it. The slot is made pristine.`, "Release")) return;
  await act("DELETE", `v1/leases/${encodeURIComponent(slot.lease)}`, undefined, `${name} is released`);
});

// --- what operators do

async function cordon(id) {
  const on = state.containers.get(id)?.state !== "cordoned";
  await act("POST", `v1/containers/${encodeURIComponent(id)}/cordon`, { on }, on ? `${id} gets no new leases` : `${id} gets leases again`);
}

async function empty(id, how) {
  const leases = state.containers.get(id)?.slots.filter((slot) => slot.lease).length ?? 0;
  const rest = leases ? `Its ${plural(leases, "lease")} ${leases === 1 ? "is" : "are"} served on; it stops when the last has ended.` : "It has no leases and stops at once.";
  const then = how === "recycle" ? " Another one is started in its place now." : "";
  const title = how === "recycle" ? "Recycle" : "Drain";
  if (!await ask(`${title} ${id}?`, rest + then, title)) return;
  await act("POST", `v1/containers/${encodeURIComponent(id)}/${how}`, {}, `${id} is draining`);
}

async function act(method, path, body, done) {
  try {
    const answer = await fetch(path, {
      method, headers: { ...authorization(), ...(body ? { "Content-Type": "application/json" } : {}) },
      body: body && JSON.stringify(body), cache: "no-store",
    });
    if (answer.ok) return toast(done);
    const fault = (await answer.json().catch(() => undefined))?.error;
    toast(fault?.message ?? `the server answered ${answer.status}`, true);
    if (answer.status === 401 || answer.status === 403) askToken(fault?.kind === "denied" ? "This needs the operators' token." : "The server wants another token.");
  } catch {
    toast("the server did not answer", true);
  }
}

function ask(title, question, yes) {
  const dialog = $("ask-dialog");
  text($("ask-title"), title);
  text($("ask-text"), question);
  text($("ask-yes"), yes);
  return new Promise((resolve) => {
    let answer = false;
    $("ask-yes").onclick = () => { answer = true; dialog.close(); };
    dialog.onclose = () => resolve(answer);
    dialog.showModal();
  });
}

let toasting;

function toast(message, bad) {
  clearTimeout(toasting);
  text($("toast"), message);
  set($("toast"), { "data-bad": bad ? "" : undefined });
  $("toast").hidden = false;
  toasting = setTimeout(() => { $("toast").hidden = true; }, 6000);
}

for (const button of document.querySelectorAll("[data-close]")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}

// --- the token: in this tab's session storage and nowhere else

const tokenKey = "berth.token";
const authorization = () => {
  const token = sessionStorage.getItem(tokenKey);
  return token ? { Authorization: `Bearer ${token}` } : {};
};

function askToken(why) {
  text($("token-text"), `${why} It is kept in this tab only, until it is closed.`);
  $("token-input").value = "";
  if (!$("token-dialog").open) $("token-dialog").showModal();
}

$("token-button").addEventListener("click", () => askToken("Some servers want one."));
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = $("token-input").value.trim();
  $("token-input").value = "";
  if (token) sessionStorage.setItem(tokenKey, token);
  $("token-dialog").close();
  reconnect();
});
$("token-forget").addEventListener("click", () => {
  sessionStorage.removeItem(tokenKey);
  $("token-dialog").close();
  reconnect();
});

// --- following the server

let following = new AbortController();
let heard = Date.now();

function live(word, message) {
  set($("live"), { "data-state": word });
  text($("live-text"), message);
}

function reconnect() {
  following.abort();
}

const silence = 8000; // ms without an event after which a connection is given up

setInterval(() => {
  if ($("live").dataset.state === "live" && Date.now() - heard > silence) reconnect();
}, 1000);

async function follow() {
  const answer = await fetch("v1/events", { headers: { Accept: "text/event-stream", ...authorization() }, signal: following.signal, cache: "no-store" });
  if (!answer.ok) {
    const fault = (await answer.json().catch(() => undefined))?.error;
    return { status: answer.status, message: fault?.message ?? `the server answered ${answer.status}` };
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return { message: "the server ended the connection" };
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const name = /^event: (.*)$/m.exec(block)?.[1];
      const found = /^data: (.*)$/m.exec(block)?.[1];
      if (!name || !found) continue;
      heard = Date.now();
      live("live", "live");
      take(name, JSON.parse(found));
    }
  }
}

async function run() {
  for (let pause = 500; ; pause = Math.min(pause * 2, 10000)) {
    following = new AbortController();
    const aborted = new Promise((resolve) => following.signal.addEventListener("abort", resolve));
    let wait = pause;
    try {
      const end = await follow();
      if (end.status === 401 || end.status === 403) {
        live("refused", "token needed");
        askToken(end.status === 401 ? "The server wants a token." : "The server does not know this token.");
        wait = 1e9; // until there is another token
      } else {
        live("connecting", end.message);
      }
    } catch {
      live("connecting", "not connected, trying again");
    }
    if (Date.now() - heard < silence) pause = 500;
    await Promise.race([aborted, new Promise((resolve) => setTimeout(resolve, Math.min(wait, 2 ** 31 - 1)))]);
  }
}

run();
