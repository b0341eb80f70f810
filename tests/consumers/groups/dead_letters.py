"""Poison events go to a table of dead letters. Saved beside consumer.py, and used in the same way."""

import consumer

DELIVERIES_MAX = 5


def dead_letter(connection, event, error):
    connection.execute(
        "INSERT INTO dead_letter (event_id, seq, aggregate_id, payload, error) VALUES (%s, %s, %s, %s, %s)",
        (event.event_id, event.seq, event.aggregate_id, event.payload, str(error)),
    )


def handle(connection, batch):
    """Each event in a transaction of its own, so that the one that fails is known. False: wait before the next poll."""
    for event in batch:
        if consumer.stopping:
            return False
        try:
            with connection.transaction():
                consumer.work(connection, event)
                consumer.commit(connection, event)
        except Exception as error:
            code = getattr(error, "sqlstate", None)
            consumer.log(f"event {event.seq} rolled back, delivery {event.deliveries}:", error)
            if connection.closed:
                raise
            if code in consumer.LOST:
                return True
            if code in consumer.RETRY or event.deliveries < DELIVERIES_MAX:
                # The events before this one are committed. The others are delivered again, with deliveries + 1.
                consumer.release(connection)
                return False
            with connection.transaction():
                dead_letter(connection, event, error)
                consumer.commit(connection, event)
    return True


def step(connection):
    batch = consumer.poll(connection)
    return bool(batch) and handle(connection, batch)


if __name__ == "__main__":
    consumer.main(step)
