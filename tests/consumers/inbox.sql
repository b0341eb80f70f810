-- What this consumer has seen. "C" compares bytes, whatever the database's collation is.
CREATE TABLE inbox_position (
    aggregate text PRIMARY KEY,
    position  text COLLATE "C" NOT NULL
);
CREATE TABLE inbox_id (
    aggregate text,
    history   text,
    id        text,
    seen_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (aggregate, history, id)
);

-- Whether the effect of this record is to happen. Call it in the effect's transaction.
CREATE FUNCTION inbox_is_new(of_aggregate text, header_id text, header_position text, header_history text)
RETURNS boolean LANGUAGE sql AS $$
    WITH higher AS (
        INSERT INTO inbox_position AS p (aggregate, position)
        SELECT of_aggregate, header_position WHERE header_position IS NOT NULL
        ON CONFLICT (aggregate) DO UPDATE SET position = excluded.position WHERE p.position < excluded.position
        RETURNING true
    ), unknown AS (
        INSERT INTO inbox_id (aggregate, history, id)
        SELECT of_aggregate, coalesce(left(header_position, 8), header_history), header_id
        WHERE header_position IS NULL OR EXISTS (SELECT FROM higher)
        ON CONFLICT DO NOTHING
        RETURNING true
    )
    SELECT EXISTS (SELECT FROM unknown)
$$;
