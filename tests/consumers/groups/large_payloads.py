"""Events of a log of kind "reference", whose payloads are in the outbox table. Saved beside consumer.py."""

import consumer

consumer.BATCH_EVENTS = 20  # references, not payloads: a batch is small whatever its payloads are

PAYLOADS = """
    SELECT b.seq, b.event_id, o.aggregate_id, o.id IS NOT NULL AS found, o.payload::text
    FROM unnest(%s::bigint[], %s::text[]) AS b (seq, event_id)
    LEFT JOIN public.outbox o ON o.id = b.event_id::bigint
    ORDER BY b.seq
"""


def work(connection, event):
    """The effect of one event, here the size of its payload."""
    connection.execute(
        "INSERT INTO effect (event_id, seq, aggregate_id, consumer, bytes) VALUES (%s, %s, %s, %s, %s)",
        (event.event_id, event.seq, event.aggregate_id, consumer.CONSUMER, len(event.payload.encode())),
    )


def step(connection):
    batch = consumer.poll(connection)
    if batch:
        with connection.transaction():
            # A cursor of the server, read one row at a time: there is one payload in memory, and the statements of
            # work() go over the same connection between two rows.
            with connection.cursor(name="payloads") as payloads:
                payloads.itersize = 1
                payloads.execute(PAYLOADS, ([e.seq for e in batch], [e.event_id for e in batch]))
                for event in payloads:
                    if not event.found:
                        raise SystemExit(f"the outbox has no row with id {event.event_id}: it was deleted too early")
                    work(connection, event)
            consumer.commit(connection, batch[-1])
    return bool(batch)


if __name__ == "__main__":
    consumer.main(step)
