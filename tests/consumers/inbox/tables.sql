-- The effects of the programs: here a row for each. It has no unique key that would hide a second effect.
CREATE TABLE effect (
    n            bigint GENERATED ALWAYS AS IDENTITY,
    event_id     text NOT NULL,
    aggregate_id text NOT NULL,
    payload      jsonb,
    done_by      text NOT NULL
);
