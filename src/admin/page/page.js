// The operators' page: reads /status, /history and /find, and shows what they say. It changes nothing, keeps nothing, and
// writes texts with textContent only, because names and errors come from databases and brokers.
"use strict";

const STATUS_EVERY_MS = 2000;
const REQUEST_MAX_MS = 8000;
const ANNOUNCE_EVERY_MS = 60000;
const CHART_WIDTH = 600;
const CHART_HEIGHT = 100;

const GOOD = new Set(["streaming", "polling"]);
const NOTE = new Set(["catching_up", "standing_by", "starting", "draining", "paused"]);
const BAD = new Set(["halted", "source_down", "broker_down", "parking_full"]);

const STAGES = {
  committed: "Committed",
  read: "Read",
  in_flight: "In flight",
  acknowledged: "Acknowledged",
  confirmed: "Confirmed",
};

const FOUND = {
  in_flight: "in flight: the broker has not answered yet",
  in_transaction: "in flight: its transaction is not committed yet",
  published: "published: the broker has acknowledged it",
  refused: "refused: it is parked, or being parked",
  given_up: "given up when the producer was replaced: the broker may have it, and it is published again",
};

const by = (id) => document.getElementById(id);

function el(tag, name, ...children) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...children.filter((child) => child !== null && child !== undefined).map((child) =>
    child instanceof Node ? child : document.createTextNode(String(child))));
  return made;
}

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

function text(id, value) {
  const node = by(id);
  if (node.textContent !== value) node.textContent = value;
}

const number = (value) => Number(value).toLocaleString("en-US", { maximumFractionDigits: 0 });

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.0005) return "0 ms";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 119.5) return `${Math.round(seconds)} s`;
  if (seconds < 7170) return `${Math.round(seconds / 60)} min`;
  if (seconds < 171000) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const sign = bytes < 0 ? "-" : "";
  let value = Math.abs(bytes);
  if (value < 1024) return `${sign}${Math.round(value)} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = -1;
  while (value >= 1023.95 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${sign}${value < 99.95 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

function rate(value) {
  if (value === null || value === undefined) return "–";
  return value > 0 && value < 9.95 ? `${value.toFixed(1)}/s` : `${number(value)}/s`;
}

const words = (name) => String(name).replaceAll("_", " ");

function tone(state) {
  if (GOOD.has(state)) return "good";
  if (NOTE.has(state)) return "note";
  return BAD.has(state) ? "bad" : "plain";
}

const keyOf = (pipeline) => `${encodeURIComponent(pipeline.pipeline)}/${pipeline.shard}`;

function nameOf(pipeline, all) {
  const shards = all.filter((other) => other.pipeline === pipeline.pipeline).length;
  return shards > 1 || pipeline.shard > 0 ? `${pipeline.pipeline}, shard ${pipeline.shard}` : pipeline.pipeline;
}

const page = {
  status: null,
  chosen: null,
  window: "hour",
  history: null,
  historyAt: 0,
  links: new Map(),
  announced: { key: null, state: null, at: 0 },
  failedAt: null,
  generation: 0,
  found: { key: null, generation: 0 },
};

async function read(path) {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), REQUEST_MAX_MS);
  try {
    const answer = await fetch(path, { signal: abort.signal, cache: "no-store" });
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return await answer.json();
  } finally {
    clearTimeout(timer);
  }
}

function fromHash() {
  const hash = location.hash;
  return hash.startsWith("#/") ? hash.slice(2) : null;
}

function chosenPipeline() {
  const all = page.status.pipelines;
  const wanted = fromHash() ?? page.chosen;
  const found = all.find((pipeline) => keyOf(pipeline) === wanted)
    ?? all.find((pipeline) => !pipeline.ready) ?? all[0] ?? null;
  page.chosen = found === null ? null : keyOf(found);
  return found;
}

function showNav() {
  const all = page.status.pipelines;
  const filter = by("filter").value.trim().toLowerCase();
  const onlyTrouble = by("trouble").checked;
  const list = by("pipelines");
  const known = new Set();
  let shown = 0;
  for (const pipeline of all) {
    const key = keyOf(pipeline);
    known.add(key);
    let link = page.links.get(key);
    if (!link) {
      const anchor = el("a");
      anchor.href = `#/${key}`;
      const of = el("span", "of");
      const badge = el("span", "badge");
      const says = el("span", "says");
      anchor.append(el("span", "line", of, badge), says);
      link = { item: el("li", "", anchor), anchor, of, badge, says };
      page.links.set(key, link);
      list.append(link.item);
    }
    const name = nameOf(pipeline, all);
    if (link.of.textContent !== name) link.of.textContent = name;
    const state = words(pipeline.state);
    if (link.badge.textContent !== state) link.badge.textContent = state;
    link.badge.className = `badge ${tone(pipeline.state)}`;
    if (link.says.textContent !== pipeline.sentence) link.says.textContent = pipeline.sentence;
    const current = String(key === page.chosen);
    if (link.anchor.getAttribute("aria-current") !== current) link.anchor.setAttribute("aria-current", current);
    const matches = name.toLowerCase().includes(filter) && !(onlyTrouble && pipeline.ready);
    link.item.hidden = !matches;
    shown += matches ? 1 : 0;
  }
  for (const [key, link] of page.links) {
    if (!known.has(key)) {
      link.item.remove();
      page.links.delete(key);
    }
  }
  by("none").hidden = shown > 0 || all.length === 0;
  by("nav").hidden = all.length === 0;
}

function showSummary() {
  const { pipelines, intakes = [], version } = page.status;
  text("version", version);
  const ready = pipelines.filter((pipeline) => pipeline.ready).length;
  const parts = [];
  if (pipelines.length > 0) parts.push(`${ready} of ${pipelines.length} pipelines ready`);
  if (intakes.length > 0) {
    parts.push(`${intakes.filter((intake) => intake.ready).length} of ${intakes.length} intakes ready`);
  }
  text("summary", parts.join(", ") || "No pipeline runs in this process.");
  document.title = ready === pipelines.length ? "Postrider" : `(${pipelines.length - ready}) Postrider`;
}

function stageOf(stage, blocked) {
  const small = [];
  if (stage.behind_bytes) small.push(`${size(stage.behind_bytes)} behind the stage before`);
  if (stage.events_per_second !== null && stage.events_per_second !== undefined) {
    small.push(`${rate(stage.events_per_second)} events`);
  }
  if (stage.bytes_per_second !== null && stage.bytes_per_second !== undefined) {
    small.push(`${size(stage.bytes_per_second)}/s`);
  }
  if (stage.oldest_seconds) small.push(`oldest ${duration(stage.oldest_seconds)}`);
  if (stage.still_seconds !== null && stage.still_seconds !== undefined) {
    small.push(stage.still_seconds < 3 ? "moves" : `unchanged for ${duration(stage.still_seconds)}`);
  }
  const main = stage.stage === "in_flight"
    ? `${number(stage.events)} events, ${size(stage.bytes)}`
    : stage.position ?? "–";
  const item = el("li", blocked && blocked.stage === stage.stage ? "blocked" : "",
    el("div", "stage", STAGES[stage.stage] ?? stage.stage),
    el("div", "main", main),
    ...small.map((line) => el("div", "small", line)));
  const why = blocked && blocked.stage === stage.stage ? blocked.why : stage.waits_for;
  if (why) item.append(el("div", "why", `waits: ${why}`));
  return item;
}

function facts(id, rows) {
  by(id).replaceChildren(...rows.filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => el("div", "", el("dt", "", name), el("dd", "", value))));
}

function table(caption, heads, rows) {
  const numeric = (index) => typeof heads[index] !== "string";
  const label = (head) => (typeof head === "string" ? head : head.number);
  const cell = (tag, index, value) => el(tag, numeric(index) ? "number" : "", value);
  const headRow = el("tr", "", ...heads.map((head, index) => {
    const made = cell("th", index, label(head));
    made.scope = "col";
    return made;
  }));
  const made = el("table", "", el("caption", "", caption), el("thead", "", headRow),
    el("tbody", "", ...rows.map((row) => el("tr", "", ...row.map((value, index) => cell("td", index, value))))));
  return el("div", "wide", made);
}

function showSlot(pipeline) {
  const flow = pipeline.flow;
  const room = flow.slot_room;
  const growth = flow.slot_growth_bytes_per_second;
  facts("slot", [
    ["slot", pipeline.slot || "none"],
    ["database", pipeline.source || null],
    ["wal_status", pipeline.slot_state],
    ["keeps", pipeline.slot_retained_bytes === null ? null : size(pipeline.slot_retained_bytes)],
    ["may keep", room ? `${size(room.bytes)} more, by ${room.limit}` :
      pipeline.slot_retained_bytes === null ? null : "as much as the disk has: no limit is set"],
    ["grows", growth === null ? null : growth > 0 ? `${size(growth)}/s` : "not"],
    ["full in", room && room.full_in_seconds !== null ? duration(room.full_in_seconds) : null],
    ["caught up in", flow.caught_up_in_seconds === null ? null : duration(flow.caught_up_in_seconds)],
    ["last answer of the database", pipeline.source_contact_seconds === null ? "none yet" :
      `${duration(pipeline.source_contact_seconds)} ago`],
    ["reconnects", number(pipeline.source_reconnects_total)],
  ]);
}

function showParked(pipeline) {
  const parked = pipeline.parked;
  const total = parked.waiting + parked.behind + parked.due + parked.dead;
  if (total === 0) {
    by("parked").replaceChildren(el("p", "", "None."));
    return;
  }
  const parts = [
    el("p", "", `${number(parked.waiting)} to be attempted again, ${number(parked.behind)} behind an earlier event, `
      + `${number(parked.due)} due later, ${number(parked.dead)} dead; ${number(parked.aggregates)} aggregates are `
      + `blocked. The oldest has been parked for ${duration(parked.oldest_seconds)}.`),
  ];
  if (parked.heads.length > 0) {
    parts.push(table("First events of blocked aggregates, by the number of events behind each",
      ["position", "state", "error", { number: "attempts" }, { number: "events behind" }, "next attempt"],
      parked.heads.map((head) => [head.position, head.state, head.error_code ?? "–", number(head.attempts),
        number(head.behind), head.retry_in_seconds === null ? "by a person" : `in ${duration(head.retry_in_seconds)}`])));
  }
  if (parked.by_error.length > 0) {
    parts.push(table("Refused events by error", ["error", { number: "events" }],
      parked.by_error.map((refused) => [refused.error_code, number(refused.events)])));
  }
  parts.push(el("p", "small", "Show, retry, replace or skip an event:"),
    el("pre", "", `postrider parked list -p ${pipeline.pipeline}`));
  by("parked").replaceChildren(...parts);
}

// A command that a person can copy into a shell.
function command(...words) {
  return words.map((word) => (/^[A-Za-z0-9_.,:\/=-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
}

function foundRow(event, now) {
  const at = event.settled_unix_ms ?? event.sent_unix_ms;
  return [FOUND[event.state] ?? words(event.state), event.topic ?? "–", event.partition ?? "–", event.offset ?? "–",
    event.position, `${duration((now - at) / 1000)} ago`];
}

function reachOf(answer) {
  const of = answer.remembers;
  if (of === null) return "This process remembers no publications: admin.remember_changes is 0.";
  const back = of.since_start ? `everything since its start ${duration(of.seconds)} ago`
    : `the newest ${number(of.changes_max)} changes, back to ${duration(of.seconds)} ago`;
  return `This process remembers ${back}. What is not found here may be waiting in the table, parked, published before `
    + "that or by another process: it is not lost. The command below asks the database too.";
}

async function find() {
  const pipeline = page.status === null ? null : chosenPipeline();
  const wanted = by("find-text").value;
  if (pipeline === null || wanted === "") return;
  page.found = { key: keyOf(pipeline), generation: page.found.generation + 1 };
  const { generation } = page.found;
  const parts = [];
  try {
    const of = `find?pipeline=${encodeURIComponent(pipeline.pipeline)}&shard=${pipeline.shard}`;
    const value = encodeURIComponent(wanted);
    const kinds = wanted.includes(":") ? ["id", "aggregate"] : ["id"];
    const answers = await Promise.all(kinds.map((kind) => read(`${of}&${kind}=${value}`)));
    answers.forEach((answer, index) => {
      if (answer.found.length === 0) return;
      const what = kinds[index] === "id" ? "Events with this id" : "Events of this aggregate";
      parts.push(table(`${what}, the newest first${answer.more ? "; there are more" : ""}`,
        ["state", "topic", { number: "partition" }, { number: "offset" }, "position", "since"],
        answer.found.map((event) => foundRow(event, answer.now_unix_ms))));
    });
    if (parts.length === 0) parts.push(el("p", "", "Not found in the memory of this process."));
    parts.push(el("p", "small", reachOf(answers[0])));
    const controls = /[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/.test(wanted + pipeline.pipeline);
    if (!controls) {
      const asked = kinds.map((kind) => (kind === "id" ? command("postrider", "find", "-p", pipeline.pipeline, "--", wanted)
        : command("postrider", "find", "-p", pipeline.pipeline, `--aggregate=${wanted}`)));
      parts.push(el("pre", "", asked.join("\n")));
    }
  } catch (error) {
    parts.push(el("p", "", `The process did not answer: ${error.message}`));
  }
  // Another event may have been asked for meanwhile.
  if (generation === page.found.generation) by("find-result").replaceChildren(...parts);
}

function runsOf(name, runs) {
  const last = runs.last_run_seconds === null || runs.last_run_seconds === undefined
    ? "not yet" : `${duration(runs.last_run_seconds)} ago`;
  return [name, last, number(runs.failures_total), runs.reason ?? "", runs.hint ?? ""];
}

function showTables(pipeline) {
  const maintenance = pipeline.maintenance;
  const parts = [table("Counters since the process started", ["counter", { number: "value" }], [
    ["published", number(pipeline.published_total)],
    ["parked", number(pipeline.parked_total)],
    ["skipped", number(pipeline.skipped_total)],
    ["producers replaced", number(pipeline.sink_resets_total)],
  ])];
  const runs = [runsOf("tables of Postrider", maintenance)];
  const retention = maintenance.retention;
  if (retention) runs.push(runsOf("retention", retention));
  if (maintenance.event_logs) runs.push(runsOf("event logs", maintenance.event_logs));
  for (const inboxes of maintenance.inboxes ?? []) runs.push(runsOf(`inboxes of the ${inboxes.database}`, inboxes));
  parts.push(table("Maintenance", ["of", "done", { number: "failures" }, "problem", "what to do"], runs));
  if (retention) {
    parts.push(el("p", "", `Retention has removed ${number(retention.removed_rows_total)} rows and `
      + `${number(retention.partitions_removed_total)} partitions, and created `
      + `${number(retention.partitions_created_total)} partitions.`));
    if (retention.blocked.length > 0) {
      parts.push(table("What blocks retention", ["reason", "what to do"],
        retention.blocked.map((blocked) => [blocked.message, blocked.hint ?? ""])));
    }
    if (retention.held_rows.length > 0) {
      parts.push(table("Rows that retention keeps", ["reason", { number: "rows" }],
        retention.held_rows.map((held) => [words(held.reason), number(held.rows)])));
    }
  }
  const logs = maintenance.event_logs?.logs ?? [];
  const groups = logs.flatMap((log) => log.groups.map((group) => [log.log, group.group, number(group.lag_events),
    duration(group.lag_seconds), group.evicted ? "evicted" : `${group.consumers_alive} alive`]));
  if (groups.length > 0) {
    parts.push(table("Consumer groups", ["log", "group", { number: "events behind" }, { number: "behind" }, "consumers"],
      groups));
  }
  const inboxes = (maintenance.inboxes ?? []).flatMap((database) => database.inboxes.map((inbox) =>
    [inbox.inbox, inbox.health, number(inbox.pending), number(inbox.dead), duration(inbox.oldest_pending_seconds)]));
  if (inboxes.length > 0) {
    parts.push(table("Inboxes", ["inbox", "health", { number: "pending" }, { number: "dead" }, { number: "oldest" }],
      inboxes));
  }
  by("tables").replaceChildren(...parts);
}

function showIntakes() {
  const intakes = page.status.intakes ?? [];
  by("intakes").hidden = intakes.length === 0;
  if (intakes.length === 0) return;
  by("intakes-table").replaceChildren(table("What stores messages in inboxes",
    ["intake", "source", "inbox", "state", "reason", "what to do"],
    intakes.map((intake) => [intake.intake, intake.source ?? "", intake.inbox ?? "", words(intake.state),
      intake.reason ?? "", intake.hint ?? ""])));
}

// A screen reader hears the sentence when the state changes, and otherwise once a minute at most.
function announce(pipeline, name) {
  const key = keyOf(pipeline);
  const before = page.announced;
  const now = Date.now();
  const changed = before.key !== key || before.state !== `${pipeline.state} ${pipeline.reason}`;
  if (!changed && now - before.at < ANNOUNCE_EVERY_MS) return;
  page.announced = { key, state: `${pipeline.state} ${pipeline.reason}`, at: now };
  text("announce", `${name} ${pipeline.sentence}`);
}

function showPipeline() {
  const pipeline = chosenPipeline();
  by("pipeline").hidden = pipeline === null;
  if (pipeline === null) return;
  const name = nameOf(pipeline, page.status.pipelines);
  text("name", name);
  text("state", words(pipeline.state));
  by("state").className = `badge ${tone(pipeline.state)}`;
  text("sentence", `${pipeline.sentence}.`);
  announce(pipeline, name);
  by("todo").hidden = !pipeline.hint;
  text("hint", pipeline.hint ?? "");
  by("pipe").replaceChildren(...pipeline.flow.stages.map((stage) => stageOf(stage, pipeline.flow.blocked)));
  showSlot(pipeline);
  showParked(pipeline);
  if (page.found.key !== null && page.found.key !== keyOf(pipeline)) {
    page.found = { key: null, generation: page.found.generation + 1 };
    by("find-result").replaceChildren();
  }
  showTables(pipeline);
}

function clock(unixSeconds) {
  const date = new Date(unixSeconds * 1000);
  const two = (value) => String(value).padStart(2, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

// The points of a column as lines: a missing value, or a pause of the process, ends a line.
function lines(at, values, step, x, y) {
  const path = [];
  let open = false;
  for (let index = 0; index < at.length; index += 1) {
    const value = values[index];
    const gap = index > 0 && at[index] - at[index - 1] > 3 * step;
    if (value === null) {
      open = false;
      continue;
    }
    path.push(`${open && !gap ? "L" : "M"}${x(at[index] + step).toFixed(1)} ${y(value).toFixed(1)}`);
    if (!open || gap) path.push(`h${Math.max(0.6, x(step) - x(0)).toFixed(1)}`);
    open = true;
  }
  return path.join("");
}

function chart(title, columns, series, format, x) {
  const values = series.flat().filter((value) => value !== null);
  const caption = el("figcaption");
  const figure = el("figure", "", caption);
  caption.id = `chart-${title.replaceAll(/[^A-Za-z]+/g, "-")}`;
  if (values.length === 0) {
    caption.append(el("b", "", title), ": no data yet");
    return figure;
  }
  const most = Math.max(...values);
  const last = series[0].findLast((value) => value !== null) ?? null;
  caption.append(el("b", "", title), `: ${last === null ? "–" : format(last)}, at most ${format(most)}`);
  const y = (value) => CHART_HEIGHT - 4 - (most > 0 ? value / most : 0) * (CHART_HEIGHT - 12);
  const svg = drawn("svg", {
    viewBox: `0 0 ${CHART_WIDTH} ${CHART_HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-labelledby": caption.id,
  });
  svg.append(drawn("line", { class: "grid", x1: 0, x2: CHART_WIDTH, y1: y(0), y2: y(0) }));
  series.forEach((column, index) => {
    const path = lines(columns.at, column, columns.step_seconds, x, y);
    if (path) svg.append(drawn("path", { class: index === 0 ? "first" : "second", d: path }));
  });
  figure.append(svg);
  return figure;
}

function stateStrip(columns, log, x) {
  const caption = el("figcaption", "", el("b", "", "State"));
  caption.id = "chart-state";
  const figure = el("figure", "states", caption);
  if (columns.at.length === 0) {
    caption.append(": no data yet");
    return figure;
  }
  const seconds = new Map();
  const svg = drawn("svg", {
    viewBox: `0 0 ${CHART_WIDTH} ${CHART_HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-labelledby": caption.id,
  });
  columns.at.forEach((at, index) => {
    const state = columns.state[index];
    seconds.set(state, (seconds.get(state) ?? 0) + columns.step_seconds);
    const width = Math.max(0.6, x(columns.step_seconds) - x(0));
    svg.append(drawn("rect", { class: tone(state), x: x(at).toFixed(1), y: 0, width: width.toFixed(1), height: 60 }));
  });
  for (const event of log) {
    const at = x(event.unix_ms / 1000).toFixed(1);
    svg.append(drawn("line", {
      class: event.level === "INFO" ? "mark info" : "mark", x1: at, x2: at, y1: 66, y2: CHART_HEIGHT,
    }));
  }
  const parts = [...seconds].sort((one, other) => other[1] - one[1]);
  caption.append(`: ${parts.map(([state, sum]) => `${words(state)} ${duration(sum)}`).join(", ")}; `
    + `${log.length} log events`);
  figure.append(svg);
  return figure;
}

function showHistory() {
  const history = page.history;
  if (history === null) {
    by("charts").replaceChildren();
    by("log").replaceChildren();
    return;
  }
  const { columns, log } = history;
  const span = page.window === "hour" ? 3600 : 86400;
  const end = history.now_unix_ms / 1000;
  const x = (at) => ((at - (end - span)) / span) * CHART_WIDTH;
  by("charts").replaceChildren(
    stateStrip(columns, log, x),
    chart("Rate", columns, [columns.rate], rate, x),
    chart("Lag", columns, [columns.lag], duration, x),
    chart("Latency, and 99 of 100 below", columns, [columns.latency, columns.latency_most], duration, x),
    chart("WAL that the slot keeps", columns, [columns.retained], size, x),
    chart("Parked events", columns, [columns.parked], number, x));
  const items = [...log].reverse().map((event) => {
    const time = el("time", "", clock(event.unix_ms / 1000));
    time.dateTime = new Date(event.unix_ms).toISOString();
    const level = el("span", event.level === "INFO" ? "badge" : event.level === "ERROR" ? "badge bad" : "badge note",
      event.level.toLowerCase());
    const item = el("li", "", time, " ", level, " ", event.message);
    if (event.hint) item.append(el("div", "small", event.hint));
    return item;
  });
  by("log").replaceChildren(...(items.length > 0 ? items : [el("li", "small", "No log events in this time.")]));
}

async function readHistory(force) {
  if (page.chosen === null) return;
  const every = page.window === "hour" ? 5000 : 30000;
  if (!force && Date.now() - page.historyAt < every) return;
  page.historyAt = Date.now();
  page.generation += 1;
  const generation = page.generation;
  const history = await read(`history/${page.chosen}/${page.window}`);
  // Another pipeline or time may have been chosen meanwhile.
  if (generation === page.generation) {
    page.history = history;
    showHistory();
  }
}

function showStale(error) {
  page.failedAt ??= Date.now();
  document.body.classList.add("stale");
  by("stale").hidden = false;
  text("stale", `No answer since ${clock(page.failedAt / 1000)}: what is shown is older than that. ${error.message}`);
}

function showFresh() {
  page.failedAt = null;
  document.body.classList.remove("stale");
  by("stale").hidden = true;
}

function show() {
  showSummary();
  const before = page.chosen;
  showPipeline();
  showNav();
  showIntakes();
  return before !== page.chosen;
}

async function update() {
  try {
    page.status = await read("status");
    const changed = show();
    if (changed) {
      page.history = null;
      showHistory();
    }
    await readHistory(changed);
    showFresh();
  } catch (error) {
    showStale(error);
  }
}

async function choose() {
  if (page.status === null || fromHash() === null) return;
  if (show()) {
    page.history = null;
    showHistory();
  }
  document.getElementById("detail").focus({ preventScroll: true });
  try {
    await readHistory(true);
  } catch (error) {
    showStale(error);
  }
}

async function setWindow(name) {
  page.window = name;
  for (const id of ["hour", "day"]) by(id).setAttribute("aria-pressed", String(id === name));
  try {
    await readHistory(true);
  } catch (error) {
    showStale(error);
  }
}

async function run() {
  for (;;) {
    if (!document.hidden) await update();
    await new Promise((done) => {
      setTimeout(done, STATUS_EVERY_MS);
    });
  }
}

addEventListener("hashchange", choose);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) update();
});
by("filter").addEventListener("input", () => {
  if (page.status !== null) showNav();
});
by("trouble").addEventListener("change", () => {
  if (page.status !== null) showNav();
});
by("find-go").addEventListener("click", find);
by("find-text").addEventListener("keydown", (event) => {
  if (event.key === "Enter") find();
});
by("hour").addEventListener("click", () => setWindow("hour"));
by("day").addEventListener("click", () => setWindow("day"));
run();
