-- The events that were set aside: what each would have been published as, why it was not, and what becomes of it.
--
-- A row is written before its event counts as resolved, and stays behind as a tombstone once it is published or
-- skipped: an event that the log sends again is known by it. The relay that owns the pipeline decides; a person writes
-- a request into the row (`postrider parked`) and never a state.
CREATE TABLE postrider.parked (
    -- Identity and order: the pipeline, where the transaction commits, and which change of it the event is.
    pipeline         text        NOT NULL,
    commit_lsn       pg_lsn      NOT NULL,
    ordinal          bigint      NOT NULL CHECK (ordinal >= 0),
    commit_time      timestamptz NOT NULL,
    event_id         text,
    event_type       text,
    aggregate_type   text,
    aggregate_id     text,
    -- Whether later events of its aggregate wait behind it.
    blocks           boolean     NOT NULL,
    -- The record as it would be published; key, value and headers only as long as they are needed. An empty topic where
    -- none could be made.
    topic            text        NOT NULL,
    partition        integer,
    key              bytea,
    value            bytea,
    header_names     text[]      NOT NULL DEFAULT '{}',
    header_values    bytea[]     NOT NULL DEFAULT '{}',
    timestamp_ms     bigint,
    -- Why: a stable word, and a line without values.
    error_code       text,
    error            text,
    attempts         integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    next_attempt_at  timestamptz,
    state            text        NOT NULL
        CHECK (state IN ('waiting', 'behind', 'due', 'dead', 'done', 'skipped')),
    -- A later event of its aggregate that was published before it.
    overtaken_lsn     pg_lsn,
    overtaken_ordinal bigint,
    -- What a person asks for; taken off when the relay has carried it out or declined it.
    requested_action text        CHECK (requested_action IN ('retry', 'skip', 'replace')),
    requested_by     text,
    requested_at     timestamptz,
    requested_reason text,
    requested_value  bytea,
    -- The last request that was taken off, and whether it was carried out.
    acted_action     text,
    acted_by         text,
    acted_at         timestamptz,
    acted_reason     text,
    acted_declined   boolean     NOT NULL DEFAULT false,
    parked_at        timestamptz NOT NULL DEFAULT now(),
    resolved_at      timestamptz,
    -- When it was published to the dead-letter topic.
    dead_sent_at     timestamptz,
    PRIMARY KEY (pipeline, commit_lsn, ordinal),
    CHECK ((aggregate_type IS NULL) = (aggregate_id IS NULL)),
    CHECK (aggregate_type IS NOT NULL OR NOT blocks),
    CHECK (cardinality(header_names) = cardinality(header_values)),
    CHECK ((overtaken_lsn IS NULL) = (overtaken_ordinal IS NULL)),
    CHECK ((requested_value IS NOT NULL) = (requested_action IS NOT DISTINCT FROM 'replace')),
    CHECK ((resolved_at IS NOT NULL) = (state IN ('done', 'skipped')))
)
-- A try that is refused changes no column that is indexed: its new version finds room on the same page.
WITH (fillfactor = 70);

CREATE INDEX parked_unresolved ON postrider.parked (pipeline, commit_lsn, ordinal)
    WHERE state NOT IN ('done', 'skipped');
CREATE INDEX parked_aggregate ON postrider.parked (pipeline, aggregate_type, aggregate_id)
    WHERE state NOT IN ('done', 'skipped');
CREATE INDEX parked_resolved ON postrider.parked (pipeline, resolved_at)
    WHERE state IN ('done', 'skipped');
CREATE INDEX parked_requested ON postrider.parked (pipeline) WHERE requested_action IS NOT NULL;
CREATE INDEX parked_event_id ON postrider.parked (pipeline, event_id);

-- Who owns the pipeline: raised by each relay that takes it over, so that one which lost it writes nothing more.
ALTER TABLE postrider.cursor ADD COLUMN IF NOT EXISTS owner_epoch bigint NOT NULL DEFAULT 0;
