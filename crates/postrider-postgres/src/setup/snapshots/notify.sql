let inserts into table "public"."outbox" wake the polling relay
Without it a polling relay queries the table once an interval. Each inserting statement queues a notification, and its commit takes for a moment the one lock under which the cluster's notifications are queued. Creating it waits, at most for the lock_timeout, until no transaction that wrote to the table is open.
BEGIN;
SET LOCAL lock_timeout = '5s';
SET LOCAL search_path = '';
CREATE OR REPLACE FUNCTION postrider.notify_outbox() RETURNS trigger
    LANGUAGE plpgsql SET search_path = '' AS $$
BEGIN
    PERFORM pg_catalog.pg_notify('postrider_outbox', TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME);
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER "postrider_notify" AFTER INSERT ON "public"."outbox"
    FOR EACH STATEMENT EXECUTE FUNCTION postrider.notify_outbox();
COMMIT;
