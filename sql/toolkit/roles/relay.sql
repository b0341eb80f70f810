-- A relay writes logs, and does the maintenance of logs and groups. It owns the tables that it creates in schema
-- postrider_log, and nothing in schema postrider.
GRANT USAGE ON SCHEMA postrider TO :"role";
GRANT USAGE, CREATE ON SCHEMA postrider_log TO :"role";
GRANT SELECT ON TABLE postrider.toolkit_migration, postrider.consumer, postrider.consumer_group_lag,
    postrider.consumer_offsets TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE postrider.event_log, postrider.event_log_head, postrider.event_log_writer,
    postrider.event_log_progress, postrider.event_log_sweep, postrider.consumer_group,
    postrider.consumer_group_partition, postrider.consumer_group_state, postrider.consumer_seen TO :"role";
GRANT USAGE ON SEQUENCE postrider.lease_token TO :"role";
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA postrider TO :"role";
