-- Layout "commerce": outbox_messages, with tenants, event versions, delays and a dead-letter table.
CREATE TABLE outbox_messages (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id      bigint      NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   bigint      NOT NULL,
    event_type     text        NOT NULL,
    event_version  smallint    NOT NULL DEFAULT 1,
    payload        jsonb       NOT NULL,
    occurred_at    timestamptz NOT NULL DEFAULT now(),
    available_at   timestamptz NOT NULL DEFAULT now(),
    processed_at   timestamptz,
    attempts       smallint    NOT NULL DEFAULT 0,
    last_error     text,
    trace_id       text
);

-- For polling: the pending rows.
CREATE INDEX outbox_messages_pending_idx ON outbox_messages (available_at, id) WHERE processed_at IS NULL;

-- The same rows in the order of polling: without this index each claim sorts all pending rows.
CREATE INDEX outbox_messages_unprocessed_idx ON outbox_messages (id) WHERE processed_at IS NULL;

CREATE INDEX outbox_messages_tenant_aggregate_idx ON outbox_messages (tenant_id, aggregate_type, aggregate_id);

-- Polling moves an event here after its last attempt.
CREATE TABLE outbox_messages_dlq (LIKE outbox_messages INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
