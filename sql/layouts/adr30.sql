-- Layout "adr30": the event type is the destination, headers are in "metadata".
-- The ADR that defines it declares the index inside CREATE TABLE, which PostgreSQL does not accept: it follows below.
CREATE TABLE outbox (
    id             uuid         PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregate_type varchar(255) NOT NULL,
    aggregate_id   uuid         NOT NULL,
    event_type     varchar(255) NOT NULL,
    payload        jsonb        NOT NULL,
    metadata       jsonb        DEFAULT '{}',
    created_at     timestamptz  NOT NULL DEFAULT clock_timestamp(),
    published_at   timestamptz
);

CREATE INDEX idx_outbox_unpublished ON outbox (created_at) WHERE published_at IS NULL;
