// Poll, work, commit. Usage: node consumer.js GROUP CONSUMER, with DATABASE_URL. Needs pg.
import { setTimeout as pause } from "node:timers/promises";
import { Client, DatabaseError } from "pg";

const [group = "", consumer = ""] = process.argv.slice(2); // two running processes never have the same name
const batchEvents = 100;
const visibilitySeconds = 30; // more than a batch takes

// bigint columns are strings in pg, so that no digit is lost.
interface Event {
  lease: string;
  seq: string;
  event_id: string;
  event_type: string;
  aggregate_type: string;
  aggregate_id: string;
  payload: string | null;
  deliveries: number;
}

const stop = new AbortController();

/** Waits between min and max milliseconds, or until the process is to stop. */
async function wait(min: number, max: number): Promise<void> {
  const time = min + Math.random() * (max - min);
  await pause(time, undefined, { signal: stop.signal }).catch(() => undefined);
}

/** The effect of one event. It is committed together with the offset, or not at all. */
async function work(client: Client, event: Event): Promise<void> {
  await client.query("INSERT INTO effect (event_id, seq, aggregate_id, consumer) VALUES ($1, $2, $3, $4)", [
    event.event_id,
    event.seq,
    event.aggregate_id,
    consumer,
  ]);
}

async function poll(client: Client): Promise<Event[]> {
  const sql = "SELECT * FROM postrider.poll_outbox($1, $2, $3, $4)";
  return (await client.query<Event>(sql, [group, consumer, batchEvents, visibilitySeconds])).rows;
}

/** Works on a batch and commits its offset, in one transaction. */
async function handle(client: Client, batch: Event[]): Promise<void> {
  const last = batch[batch.length - 1]!;
  while (!stop.signal.aborted) {
    try {
      await client.query("BEGIN");
      for (const event of batch) {
        if (stop.signal.aborted) {
          await client.query("ROLLBACK");
          return;
        }
        await work(client, event);
      }
      const sql = "SELECT postrider.commit_offset($1, $2, $3, $4)";
      await client.query(sql, [group, consumer, last.seq, last.lease]);
      await client.query("COMMIT");
      return;
    } catch (error) {
      console.error("batch rolled back:", codeOf(error), String(error));
      await client.query("ROLLBACK"); // fails if the connection is lost
      if (isRetry(error)) continue;
      // PR114, PR115: another consumer has the batch, or has done it. Any other error: the batch is delivered again
      // when its lease has run out; the other partitions go on meanwhile.
      return;
    }
  }
}

/** The SQLSTATE, if the error is the server's. */
function codeOf(error: unknown): string {
  return error instanceof DatabaseError ? (error.code ?? "") : "";
}

function isRetry(error: unknown): boolean {
  return ["40001", "40P01"].includes(codeOf(error));
}

/** What this name has leased can be polled again at once. */
async function release(client: Client): Promise<void> {
  await client.query("SELECT postrider.release_lease($1, $2)", [group, consumer]);
}

async function run(client: Client): Promise<void> {
  await client.connect();
  await release(client); // of a process of this name that was killed, or has lost its connection
  while (!stop.signal.aborted) {
    let batch: Event[] = [];
    try {
      batch = await poll(client);
    } catch (error) {
      if (!isRetry(error)) throw error;
    }
    if (batch.length > 0) await handle(client, batch);
    else await wait(200, 1000);
  }
  await release(client);
}

async function main(): Promise<void> {
  process.on("SIGTERM", () => stop.abort());
  process.on("SIGINT", () => stop.abort());
  while (!stop.signal.aborted) {
    const client = new Client({
      connectionString: process.env.DATABASE_URL,
      connectionTimeoutMillis: 10_000,
    });
    client.on("error", () => undefined); // a connection that is lost while idle: the next query fails
    try {
      await run(client);
    } catch (error) {
      const code = codeOf(error);
      // The server refuses what is asked, and will refuse it again: no such group, no rights.
      if (code !== "" && !["08", "40", "53", "57"].includes(code.slice(0, 2))) throw error;
      console.error("connecting again:", code, String(error));
      await wait(500, 3000);
    } finally {
      await client.end().catch(() => undefined);
    }
  }
}

void main();
