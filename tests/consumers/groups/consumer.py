"""Poll, work, commit. Usage: consumer.py GROUP CONSUMER, with DATABASE_URL. Needs psycopg 3."""

import os
import random
import signal
import sys
import time

import psycopg
from psycopg.rows import namedtuple_row

GROUP, CONSUMER = sys.argv[1:3]  # two running processes never have the same name
BATCH_EVENTS = 100
VISIBILITY_SECONDS = 30  # more than a batch takes
LOST, RETRY = ("PR114", "PR115"), ("40001", "40P01")

stopping = False


def stop(*_):
    global stopping
    stopping = True


def log(what, error):
    # The first line of the error: the next ones can quote a row.
    print(what, getattr(error, "sqlstate", None), str(error).partition("\n")[0], file=sys.stderr, flush=True)


def work(connection, event):
    """The effect of one event. It is committed together with the offset, or not at all."""
    connection.execute(
        "INSERT INTO effect (event_id, seq, aggregate_id, consumer) VALUES (%s, %s, %s, %s)",
        (event.event_id, event.seq, event.aggregate_id, CONSUMER),
    )


def poll(connection):
    sql = "SELECT * FROM postrider.poll_outbox(%s, %s, %s, %s)"
    return connection.execute(sql, (GROUP, CONSUMER, BATCH_EVENTS, VISIBILITY_SECONDS)).fetchall()


def commit(connection, event):
    """Everything of the event's batch up to this event is done."""
    sql = "SELECT postrider.commit_offset(%s, %s, %s, %s)"
    connection.execute(sql, (GROUP, CONSUMER, event.seq, event.lease))


def handle(connection, batch):
    """Works on a batch and commits its offset, in one transaction."""
    while not stopping:
        try:
            with connection.transaction():
                for event in batch:
                    if stopping:
                        raise psycopg.Rollback()
                    work(connection, event)
                commit(connection, batch[-1])
            return
        except Exception as error:
            code = getattr(error, "sqlstate", None)
            log("batch rolled back:", error)
            if connection.closed:
                raise
            if code in RETRY:
                continue
            # LOST: another consumer has the batch, or has done it. Any other error: the batch is delivered again when
            # its lease has run out; the other partitions go on meanwhile.
            return


def step(connection):
    """Returns whether there was something to do."""
    batch = poll(connection)
    if batch:
        handle(connection, batch)
    return bool(batch)


def release(connection):
    """What this name has leased can be polled again at once."""
    connection.execute("SELECT postrider.release_lease(%s, %s)", (GROUP, CONSUMER))


def main(step):
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    while not stopping:
        try:
            # Prepared statements do not outlive a transaction behind a transaction pooler: None turns them off.
            with psycopg.connect(
                os.environ["DATABASE_URL"],
                autocommit=True,
                prepare_threshold=None,
                connect_timeout=10,
                row_factory=namedtuple_row,
            ) as connection:
                release(connection)  # of a process of this name that was killed, or has lost its connection
                while not stopping:
                    try:
                        found = step(connection)
                    except psycopg.Error as error:
                        if error.sqlstate not in RETRY or connection.closed:
                            raise
                        found = False
                    if not found:
                        time.sleep(random.uniform(0.2, 1))
                release(connection)
        except psycopg.OperationalError as error:
            log("connecting again:", error)
            time.sleep(random.uniform(0.5, 3))


if __name__ == "__main__":
    main(step)
