"""The inbox in a consumer and in workers. Needs psycopg 3, and DATABASE_URL.

consumer.py is-new|advance|once CONSUMER < records    each effect once, behind Kafka
consumer.py store INBOX < records                     store first ...
consumer.py work INBOX WORKER                         ... and work in one transaction
consumer.py ordered INBOX WORKER SECONDS              ... or with a lease
"""

import os
import random
import sys
import time
from collections import namedtuple

import psycopg
from psycopg.rows import namedtuple_row

SOURCE = "orders"  # the name of the pipeline, if the records do not have it as a header
BATCH_MESSAGES = 10
LOST, RETRY = "PR114", ("40001", "40P01")

Record = namedtuple("Record", "offset topic key headers value")


def records():
    """Stands for a client of Kafka: a record a line of the standard input, its fields separated by tabs. Headers are
    NAME=VALUE, separated by commas."""
    for line in sys.stdin:
        offset, topic, key, headers, value = line.rstrip("\n").split("\t", 4)
        headers = dict(header.split("=", 1) for header in headers.split(",") if header)
        yield Record(offset, topic, key, headers, value)


def commit_offset(record):
    """Stands for the commit of the offset in Kafka."""
    print(record.offset, flush=True)


def in_transaction(connection, work):
    while True:
        try:
            with connection.transaction():
                return work()
        except psycopg.Error as error:
            if error.sqlstate not in RETRY or connection.closed:
                raise


def call(connection, function, *arguments):
    """Calls a function of the toolkit and returns its result."""
    places = ", ".join(["%s"] * len(arguments))
    return connection.execute(f"SELECT postrider.{function}({places})", arguments).fetchone()[0]


def effect(connection, event_id, aggregate, payload, done_by):
    """Whatever is to happen once, in this database."""
    connection.execute(
        "INSERT INTO effect (event_id, aggregate_id, payload, done_by) VALUES (%s, %s, %s::jsonb, %s)",
        (event_id, aggregate, payload, done_by),
    )


def is_new(connection, consumer, record):
    """For all events of Postrider."""
    header = record.headers.get
    source, aggregate = header("source", SOURCE), f"{record.topic}/{record.key}"
    place = (header("id"), header("position"), header("history"))
    return call(connection, "inbox_is_new", consumer, source, aggregate, *place)


def handle(connection, consumer, record, is_new):
    def work():
        if is_new(connection, consumer, record):
            aggregate = f"{record.topic}/{record.key}"
            effect(connection, record.headers["id"], aggregate, record.value, consumer)

    in_transaction(connection, work)
    commit_offset(record)


def advance(connection, consumer, record):
    """For events that always have a position."""
    source, aggregate = record.headers.get("source", SOURCE), f"{record.topic}/{record.key}"
    return call(connection, "inbox_advance", consumer, source, aggregate, record.headers.get("position"))


def once(connection, consumer, record):
    """For messages of other producers, with their own time if they have one."""
    header = record.headers.get
    return call(connection, "inbox_once", consumer, header("source", record.topic), header("id"), header("time"))


def store(connection, inbox, record):
    """Stores a record, and nothing else. A repetition has the same event_id."""
    header = record.headers.get
    source = header("source", SOURCE)
    history = header("position", "")[:8] or header("history")
    connection.execute(
        f"INSERT INTO postrider_inbox.{inbox}"
        " (event_id, event_type, source, aggregate_id, payload, sequence_num)"
        " VALUES (%s, %s, %s, %s, %s::jsonb, %s::bigint) ON CONFLICT (event_id) DO NOTHING",
        (
            f"{source}/{history}/{header('id')}",
            header("type"),
            source,
            f"{record.topic}/{record.key}",
            record.value,
            header("sequence"),
        ),
    )
    commit_offset(record)


def next_messages(connection, inbox, worker, lease=None):
    sql = "SELECT event_id, aggregate_id, payload::text, claim FROM postrider.inbox_next(%s, %s, %s, %s::interval)"
    return connection.execute(sql, (inbox, worker, BATCH_MESSAGES, lease)).fetchall()


def done(connection, inbox, message):
    call(connection, "inbox_done", inbox, [message.event_id], message.claim)


def fail(connection, inbox, message, error):
    # The first line of the error: the next ones can quote a row.
    reason = str(error).partition("\n")[0]
    print("failed:", message.event_id, getattr(error, "sqlstate", None), reason, file=sys.stderr, flush=True)
    call(connection, "inbox_fail", inbox, message.event_id, reason, message.claim)


def work(connection, inbox, worker):
    """A batch in one transaction. Returns how many messages it had."""
    batch = next_messages(connection, inbox, worker)
    for message in batch:
        try:
            with connection.transaction():  # a savepoint
                effect(connection, message.event_id, message.aggregate_id, message.payload, worker)
                done(connection, inbox, message)
        except Exception as error:
            if connection.closed or getattr(error, "sqlstate", None) in RETRY:
                raise
            fail(connection, inbox, message, error)
    return len(batch)


def work_with_lease(connection, inbox, worker, seconds):
    """A batch with a lease, and a transaction for each message. Returns how many messages it had."""
    batch = next_messages(connection, inbox, worker, f"{seconds} seconds")
    for message in batch:

        def effect_and_done():
            effect(connection, message.event_id, message.aggregate_id, message.payload, worker)
            done(connection, inbox, message)

        try:
            try:
                in_transaction(connection, effect_and_done)
            except Exception as error:
                if connection.closed or getattr(error, "sqlstate", None) == LOST:
                    raise
                fail(connection, inbox, message, error)
        except psycopg.Error as error:
            if error.sqlstate != LOST:
                raise
            # Another worker has the message since the lease ended. The effect is rolled back.
            print("lost:", message.event_id, error.sqlstate, file=sys.stderr, flush=True)
    return len(batch)


def main(mode, name, worker=None, seconds=None):
    # Prepared statements do not outlive a transaction behind a transaction pooler: None turns them off.
    with psycopg.connect(
        os.environ["DATABASE_URL"], autocommit=True, prepare_threshold=None, row_factory=namedtuple_row
    ) as connection:
        rules = {"is-new": is_new, "advance": advance, "once": once}
        if mode in rules:
            for record in records():
                handle(connection, name, record, rules[mode])
        elif mode == "store":
            for record in records():
                store(connection, name, record)
        while mode in ("work", "ordered"):
            if mode == "work":
                count = in_transaction(connection, lambda: work(connection, name, worker))
            else:
                count = work_with_lease(connection, name, worker, seconds)
            if count == 0:
                time.sleep(random.uniform(0.2, 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
