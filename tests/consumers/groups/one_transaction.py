"""Poll, work and commit in one transaction. Saved beside consumer.py, and used in the same way."""

import psycopg

import consumer


def step(connection):
    with connection.transaction():
        batch = consumer.poll(connection)
        for event in batch:
            if consumer.stopping:
                raise psycopg.Rollback()
            consumer.work(connection, event)
        if batch:
            consumer.commit(connection, batch[-1])
    return bool(batch)


if __name__ == "__main__":
    consumer.main(step)
