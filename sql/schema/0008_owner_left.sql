-- The epoch of the last owner that ended with nothing on its way to the broker. Where that is not the owner's epoch,
-- records of the owner may still arrive, and its successor, if that is another process, waits before it publishes.
ALTER TABLE postrider.cursor
    ADD COLUMN IF NOT EXISTS owner_left bigint;
