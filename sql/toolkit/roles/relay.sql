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
-- Inboxes: the relay forgets ids, and does the maintenance. It owns the inboxes that it creates.
GRANT USAGE, CREATE ON SCHEMA postrider_inbox TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE postrider.inbox, postrider.inbox_delta, postrider.inbox_order,
    postrider.inbox_wake, postrider.inbox_position, postrider.inbox_seen_undated, postrider.inbox_sweep TO :"role";
GRANT SELECT, INSERT ON TABLE postrider.inbox_seen TO :"role";
GRANT SELECT, UPDATE ON SEQUENCE postrider.inbox_first_day TO :"role";
-- inbox_forget empties the partition of a day.
GRANT SELECT, DELETE, TRUNCATE ON TABLE
    postrider.inbox_seen_00, postrider.inbox_seen_01, postrider.inbox_seen_02, postrider.inbox_seen_03,
    postrider.inbox_seen_04, postrider.inbox_seen_05, postrider.inbox_seen_06, postrider.inbox_seen_07,
    postrider.inbox_seen_08, postrider.inbox_seen_09, postrider.inbox_seen_10, postrider.inbox_seen_11,
    postrider.inbox_seen_12, postrider.inbox_seen_13, postrider.inbox_seen_14, postrider.inbox_seen_15,
    postrider.inbox_seen_16, postrider.inbox_seen_17, postrider.inbox_seen_18, postrider.inbox_seen_19,
    postrider.inbox_seen_20, postrider.inbox_seen_21, postrider.inbox_seen_22, postrider.inbox_seen_23,
    postrider.inbox_seen_24, postrider.inbox_seen_25, postrider.inbox_seen_26, postrider.inbox_seen_27,
    postrider.inbox_seen_28, postrider.inbox_seen_29, postrider.inbox_seen_30, postrider.inbox_seen_31 TO :"role";
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA postrider TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE postrider.inbox_offset TO :"role";
-- Table outboxes.
GRANT USAGE, CREATE ON SCHEMA postrider_outbox TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE postrider.table_outbox, postrider.table_outbox_group TO :"role";
