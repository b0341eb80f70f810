-- The effects of the programs below: here a row for each event. It has no unique key that would hide a second effect.
CREATE TABLE effect (
    event_id     text        NOT NULL,
    seq          bigint      NOT NULL,
    aggregate_id text,
    consumer     text        NOT NULL,
    done_at      timestamptz NOT NULL DEFAULT now()
);
-- Events that dead_letters.py gives up.
CREATE TABLE dead_letter (
    event_id     text        NOT NULL,
    seq          bigint      NOT NULL,
    aggregate_id text,
    payload      text,
    error        text        NOT NULL,
    given_up_at  timestamptz NOT NULL DEFAULT now()
);
