-- A reader reads logs and the state of groups, and changes nothing.
GRANT USAGE ON SCHEMA postrider, postrider_log, postrider_inbox TO :"role";
GRANT SELECT ON TABLE postrider.toolkit_migration, postrider.event_log, postrider.event_log_head,
    postrider.consumer_group, postrider.consumer_group_partition, postrider.consumer_group_state,
    postrider.consumer_seen, postrider.consumer, postrider.consumer_group_lag, postrider.consumer_offsets TO :"role";
GRANT EXECUTE ON FUNCTION postrider.hash_partition(text, integer), postrider.position_text(bigint, pg_lsn, bigint),
    postrider.log_head(text), postrider.log_read(text, bigint, integer), postrider.consumer_lag(text),
    postrider.check_name(text, text), postrider.check_number(text, bigint, bigint, bigint),
    postrider.check_read_committed(text), postrider.no_group(text), postrider.lease_over(timestamptz, timestamptz),
    postrider.group_state(text), postrider.part_heads(text), postrider.part_state(text, smallint[]),
    postrider.group_done_to(text),
    postrider.log_children(text), postrider.log_expired_to(text, interval), postrider.log_blockers(text, interval),
    postrider.group_status(text, integer), postrider.log_offset_at(text, timestamptz) TO :"role";
-- Inboxes: reading.
GRANT SELECT ON TABLE postrider.inbox, postrider.inbox_delta, postrider.inbox_order,
    postrider.inbox_wake, postrider.inbox_position TO :"role";
GRANT EXECUTE ON FUNCTION postrider.inbox_get(text, boolean), postrider.inbox_table(postrider.inbox),
    postrider.inbox_object(text, text), postrider.inbox_number(postrider.inbox), postrider.inbox_stats(text),
    postrider.inbox_health(text), postrider.inbox_status(text), postrider.inbox_ordering_gaps(text),
    postrider.inbox_all_gaps(text), postrider.inbox_is_my_partition(text, integer, integer),
    postrider.inbox_day(timestamptz) TO :"role";
GRANT SELECT ON TABLE postrider.inbox_offset TO :"role";
-- Table outboxes: reading.
GRANT USAGE ON SCHEMA postrider_outbox TO :"role";
GRANT SELECT ON TABLE postrider.table_outbox, postrider.table_outbox_group TO :"role";
GRANT EXECUTE ON FUNCTION postrider.outbox_get(text), postrider.outbox_triggers(name), postrider.outbox_source(name),
    postrider.outbox_tables(regclass), postrider.outbox_ways(regclass), postrider.outbox_unfit(regclass),
    postrider.outbox_other_triggers(regclass),
    postrider.outbox_writers_without_rights(text), postrider.outbox_status(text) TO :"role";
