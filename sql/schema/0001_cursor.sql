-- One row a pipeline: how far it has got, and in which history.
--
-- The row lives in the database it speaks of. A server on which it can be read has more WAL than the position in it, so
-- after a failover or a restore the cursor is never ahead of the data.
CREATE TABLE postrider.cursor (
    pipeline           text        PRIMARY KEY,
    -- The cluster, as IDENTIFY_SYSTEM prints it, and the timeline of the last write.
    system_identifier  text        NOT NULL,
    timeline           bigint      NOT NULL,
    -- The slot, and the position it was created (or adopted) at: a slot made again under the same name is another slot.
    slot               text        NOT NULL,
    slot_created_lsn   pg_lsn      NOT NULL,
    -- What the stream was asked for: the ordinals of a partly published transaction hold for these alone.
    publication        text        NOT NULL,
    messages           boolean     NOT NULL,
    -- Every event below it is resolved.
    watermark          pg_lsn      NOT NULL,
    -- No position above it is ever confirmed before this row says so: a slot found beyond it was moved by somebody
    -- else.
    flush_limit        pg_lsn      NOT NULL,
    -- The transaction at the watermark of which the first changes are resolved, and how many.
    partial_commit_lsn pg_lsn,
    partial_ordinal    bigint,
    updated_at         timestamptz NOT NULL DEFAULT now(),
    CHECK (flush_limit >= watermark),
    CHECK ((partial_commit_lsn IS NULL) = (partial_ordinal IS NULL)),
    CHECK (partial_commit_lsn >= watermark AND partial_ordinal >= 0)
)
-- Rewritten every second: room for the new version on the same page, so that no index is touched.
WITH (fillfactor = 10);
