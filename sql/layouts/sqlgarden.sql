-- Layout "sqlgarden": outbox_events, with a status and a count of attempts.
CREATE TABLE outbox_events (
    id              bigserial   PRIMARY KEY,
    aggregate_type  text        NOT NULL,
    aggregate_id    text        NOT NULL,
    event_type      text        NOT NULL,
    payload         jsonb       NOT NULL,
    status          text        NOT NULL DEFAULT 'PENDING'
                    CHECK (status IN ('PENDING', 'PUBLISHING', 'PUBLISHED', 'FAILED')),
    created_at      timestamptz NOT NULL DEFAULT now(),
    last_attempt_at timestamptz,
    attempt_count   integer     NOT NULL DEFAULT 0
);

CREATE INDEX idx_outbox_events_status_created_at ON outbox_events (status, created_at);

-- For polling: the unpublished rows, in their order. Without it each claim reads or sorts the published rows too.
CREATE INDEX idx_outbox_events_unpublished ON outbox_events (id) WHERE status <> 'PUBLISHED';
