-- Layout "gcx": the row names its own topic and partition key, and expires.
CREATE TABLE outbox (
    id             uuid         PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregate_type varchar(100) NOT NULL,
    aggregate_id   uuid         NOT NULL,
    event_type     varchar(100) NOT NULL,
    topic          varchar(100) NOT NULL,
    partition_key  varchar(100),
    payload        jsonb        NOT NULL,
    headers        jsonb        DEFAULT '{}',
    status         varchar(20)  NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'published', 'failed')),
    retry_count    smallint     NOT NULL DEFAULT 0,
    max_retries    smallint     NOT NULL DEFAULT 5,
    published_at   timestamptz,
    expires_at     timestamptz  NOT NULL DEFAULT (now() + interval '24 hours'),
    created_at     timestamptz  NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX idx_outbox_status_created ON outbox (status, created_at) WHERE status = 'pending';

CREATE INDEX idx_outbox_aggregate ON outbox (aggregate_type, aggregate_id);

CREATE INDEX idx_outbox_expires ON outbox (expires_at) WHERE status = 'published';

-- For polling: an event that has failed for good holds back the later events of its aggregate.
CREATE INDEX idx_outbox_failed ON outbox (aggregate_type, aggregate_id) WHERE status = 'failed';
