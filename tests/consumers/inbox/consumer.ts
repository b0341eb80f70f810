// The inbox in a consumer and in workers. Needs pg, and DATABASE_URL.
//
// node consumer.js is-new|advance|once CONSUMER < records    each effect once, behind Kafka
// node consumer.js store INBOX < records                     store first ...
// node consumer.js work INBOX WORKER                         ... and work in one transaction
// node consumer.js ordered INBOX WORKER SECONDS              ... or with a lease
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";
import { Client, DatabaseError } from "pg";

const [mode = "", name = "", worker = "", seconds = ""] = process.argv.slice(2);
const defaultSource = "orders"; // the name of the pipeline, if the records do not have it as a header
const batchMessages = 10;
const client = new Client({ connectionString: process.env.DATABASE_URL });

interface KafkaRecord {
  offset: string;
  topic: string;
  key: string;
  headers: Map<string, string>;
  value: string;
}

// bigint columns are strings in pg, so that no digit is lost.
interface Message {
  event_id: string;
  aggregate_id: string;
  payload: string;
  claim: string | null;
}

/**
 * Stands for a client of Kafka: a record is a line of the standard input, its fields separated by tabs. Headers are
 * NAME=VALUE, separated by commas.
 */
function recordOf(line: string): KafkaRecord {
  const [offset = "", topic = "", key = "", headers = "", ...value] = line.split("\t");
  const pairs = headers.split(",").filter((header) => header !== "").map((header): [string, string] => {
    const at = header.indexOf("=");
    return [header.slice(0, at), header.slice(at + 1)];
  });
  return { offset, topic, key, headers: new Map(pairs), value: value.join("\t") };
}

/** Stands for the commit of the offset in Kafka. */
function commitOffset(record: KafkaRecord): void {
  console.log(record.offset);
}

/** The SQLSTATE, if the error is the server's. */
function codeOf(error: unknown): string {
  return error instanceof DatabaseError ? (error.code ?? "") : "";
}

function isRetry(error: unknown): boolean {
  return ["40001", "40P01"].includes(codeOf(error));
}

async function inTransaction<T>(work: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      await client.query("BEGIN");
      const result = await work();
      await client.query("COMMIT");
      return result;
    } catch (error) {
      await client.query("ROLLBACK"); // fails if the connection is lost
      if (!isRetry(error)) throw error;
    }
  }
}

/** Calls a function of the toolkit and returns its result. */
async function call(sql: string, values: unknown[]): Promise<unknown> {
  const { rows } = await client.query<{ result: unknown }>(`SELECT postrider.${sql} AS result`, values);
  return rows[0]?.result;
}

/** Whatever is to happen once, in this database. */
async function effect(eventId: string, aggregate: string, payload: string, doneBy: string): Promise<void> {
  const sql = "INSERT INTO effect (event_id, aggregate_id, payload, done_by) VALUES ($1, $2, $3::jsonb, $4)";
  await client.query(sql, [eventId, aggregate, payload, doneBy]);
}

const aggregateOf = (record: KafkaRecord) => `${record.topic}/${record.key}`;
const sourceOf = (record: KafkaRecord) => record.headers.get("source") ?? defaultSource;

/** For all events of Postrider. */
async function isNew(record: KafkaRecord): Promise<boolean> {
  const place = ["id", "position", "history"].map((header) => record.headers.get(header));
  const values = [name, sourceOf(record), aggregateOf(record), ...place];
  return (await call("inbox_is_new($1, $2, $3, $4, $5, $6)", values)) === true;
}

async function handle(record: KafkaRecord, rule: (record: KafkaRecord) => Promise<boolean>): Promise<void> {
  await inTransaction(async () => {
    if (await rule(record)) {
      await effect(record.headers.get("id") ?? "", aggregateOf(record), record.value, name);
    }
  });
  commitOffset(record);
}

/** For events that always have a position. */
async function advance(record: KafkaRecord): Promise<boolean> {
  const values = [name, sourceOf(record), aggregateOf(record), record.headers.get("position")];
  return (await call("inbox_advance($1, $2, $3, $4)", values)) === true;
}

/** For messages of other producers, with their own time if they have one. */
async function once(record: KafkaRecord): Promise<boolean> {
  const source = record.headers.get("source") ?? record.topic;
  const values = [name, source, record.headers.get("id"), record.headers.get("time")];
  return (await call("inbox_once($1, $2, $3, $4)", values)) === true;
}

/** Stores a record, and nothing else. A repetition has the same event_id. */
async function store(record: KafkaRecord): Promise<void> {
  const { headers } = record;
  const history = headers.get("position")?.slice(0, 8) ?? headers.get("history");
  await client.query(
    `INSERT INTO postrider_inbox.${name} (event_id, event_type, source, aggregate_id, payload, sequence_num)
     VALUES ($1, $2, $3, $4, $5::jsonb, $6) ON CONFLICT (event_id) DO NOTHING`,
    [
      `${sourceOf(record)}/${history}/${headers.get("id")}`,
      headers.get("type"),
      sourceOf(record),
      aggregateOf(record),
      record.value,
      headers.get("sequence"),
    ],
  );
  commitOffset(record);
}

async function next(lease: string | null): Promise<Message[]> {
  const sql = `SELECT event_id, aggregate_id, payload::text, claim
    FROM postrider.inbox_next($1, $2, $3, $4::interval)`;
  return (await client.query<Message>(sql, [name, worker, batchMessages, lease])).rows;
}

async function done(message: Message): Promise<void> {
  await call("inbox_done($1, $2, $3)", [name, [message.event_id], message.claim]);
}

async function fail(message: Message, error: unknown): Promise<void> {
  const reason = error instanceof Error ? error.message : String(error);
  console.error("failed:", message.event_id, codeOf(error), reason);
  await call("inbox_fail($1, $2, $3, $4)", [name, message.event_id, reason, message.claim]);
}

/** A batch in one transaction. Returns how many messages it had. */
async function work(): Promise<number> {
  const batch = await next(null);
  for (const message of batch) {
    await client.query("SAVEPOINT message");
    try {
      await effect(message.event_id, message.aggregate_id, message.payload, worker);
      await done(message);
    } catch (error) {
      if (isRetry(error)) throw error;
      await client.query("ROLLBACK TO SAVEPOINT message"); // fails if the connection is lost
      await fail(message, error);
    }
    await client.query("RELEASE SAVEPOINT message");
  }
  return batch.length;
}

/** A batch with a lease, and a transaction for each message. Returns how many messages it had. */
async function workWithLease(): Promise<number> {
  const batch = await next(`${seconds} seconds`);
  for (const message of batch) {
    try {
      await workOn(message);
    } catch (error) {
      if (codeOf(error) !== "PR114") throw error;
      // Another worker has the message since the lease ended. The effect is rolled back.
      console.error("lost:", message.event_id, codeOf(error));
    }
  }
  return batch.length;
}

async function workOn(message: Message): Promise<void> {
  try {
    await inTransaction(async () => {
      await effect(message.event_id, message.aggregate_id, message.payload, worker);
      await done(message);
    });
  } catch (error) {
    if (codeOf(error) === "PR114") throw error;
    await fail(message, error); // fails if the connection is lost
  }
}

async function main(): Promise<void> {
  await client.connect();
  while (mode === "work" || mode === "ordered") {
    const count = mode === "work" ? await inTransaction(work) : await workWithLease();
    if (count === 0) await pause(200 + Math.random() * 800);
  }
  const rules = new Map([["is-new", isNew], ["advance", advance], ["once", once]]);
  const rule = rules.get(mode);
  for await (const line of createInterface({ input: process.stdin })) {
    if (rule !== undefined) await handle(recordOf(line), rule);
    else if (mode === "store") await store(recordOf(line));
    else throw new Error(`no mode ${mode}`);
  }
  await client.end();
}

client.on("error", () => undefined); // a connection that is lost while idle: the next query fails
void main();
