-- Layout "pgtrickle": the changes of a table. postrider.enable_outbox creates such a table, with the triggers that fill
-- it (docs/sql/table-outbox.md); this one is for changes that another program writes.
-- aggregate_type and aggregate_id: the name of the changed table, and the same with its schema. event_type: INSERT,
-- UPDATE, DELETE or TRUNCATE. published_at: when a polling relay has published the row. unread_since: since when a
-- claim check (a payload that only says how many rows there are elsewhere) waits for a consumer; NULL if for none.
CREATE TABLE outbox_changes (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    event_type     text        NOT NULL,
    payload        json        NOT NULL,
    inserted_count bigint      NOT NULL,
    deleted_count  bigint      NOT NULL,
    is_claim_check boolean     NOT NULL DEFAULT false,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    published_at   timestamptz,
    unread_since   timestamptz,
    consumed_by    text[]      NOT NULL DEFAULT '{}'
);

CREATE INDEX outbox_changes_unpublished ON outbox_changes (id) WHERE published_at IS NULL;
