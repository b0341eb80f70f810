-- A worker reads, polls, commits, extends and releases. It can neither create, drop nor move a group.
GRANT USAGE ON SCHEMA postrider, postrider_log, postrider_inbox TO :"role";
GRANT SELECT ON TABLE postrider.toolkit_migration, postrider.event_log, postrider.event_log_head,
    postrider.consumer_group, postrider.consumer_group_partition, postrider.consumer_group_state,
    postrider.consumer_seen, postrider.consumer, postrider.consumer_group_lag, postrider.consumer_offsets TO :"role";
GRANT INSERT ON TABLE postrider.consumer_group_state, postrider.consumer_seen TO :"role";
-- For row locks. No row of these tables is updated.
GRANT UPDATE (part) ON TABLE postrider.consumer_group_partition, postrider.consumer_group_state TO :"role";
GRANT USAGE ON SEQUENCE postrider.lease_token TO :"role";
GRANT EXECUTE ON FUNCTION postrider.hash_partition(text, integer), postrider.position_text(bigint, pg_lsn, bigint),
    postrider.log_head(text), postrider.log_read(text, bigint, integer), postrider.consumer_lag(text),
    postrider.check_name(text, text), postrider.check_number(text, bigint, bigint, bigint),
    postrider.check_read_committed(text), postrider.no_group(text), postrider.lease_over(timestamptz, timestamptz),
    postrider.group_state(text), postrider.part_heads(text), postrider.part_state(text, smallint[]),
    postrider.group_done_to(text),
    postrider.log_children(text), postrider.log_expired_to(text, interval), postrider.log_blockers(text, interval),
    postrider.group_status(text, integer), postrider.log_offset_at(text, timestamptz) TO :"role";
-- What a worker calls, and the functions that these call.
GRANT EXECUTE ON FUNCTION postrider.poll_outbox(text, text, integer, integer),
    postrider.commit_offset(text, text, bigint, bigint), postrider.commit_offset(text, text, bigint),
    postrider.extend_lease(text, text, integer, bigint), postrider.release_lease(text, text, bigint),
    postrider.consumer_heartbeat(text, text), postrider.group_append(postrider.consumer_group_state[]),
    postrider.group_lock(text, text, bigint), postrider.state_closed(postrider.consumer_group_state),
    postrider.lease_lost(text, text, bigint), postrider.log_gap(text, bigint, bigint) TO :"role";
-- Inboxes: reading.
GRANT SELECT ON TABLE postrider.inbox, postrider.inbox_delta, postrider.inbox_order,
    postrider.inbox_wake, postrider.inbox_position TO :"role";
GRANT EXECUTE ON FUNCTION postrider.inbox_get(text, boolean), postrider.inbox_table(postrider.inbox),
    postrider.inbox_object(text, text), postrider.inbox_number(postrider.inbox), postrider.inbox_stats(text),
    postrider.inbox_health(text), postrider.inbox_status(text), postrider.inbox_ordering_gaps(text),
    postrider.inbox_all_gaps(text), postrider.inbox_is_my_partition(text, integer, integer),
    postrider.inbox_day(timestamptz) TO :"role";
-- What a consumer has done.
GRANT SELECT, INSERT ON TABLE postrider.inbox_seen, postrider.inbox_seen_undated TO :"role";
GRANT SELECT, INSERT, UPDATE ON TABLE postrider.inbox_position TO :"role";
GRANT SELECT ON SEQUENCE postrider.inbox_first_day TO :"role";
GRANT EXECUTE ON FUNCTION postrider.inbox_advance(text, text, text, text),
    postrider.inbox_once(text, text, text, timestamptz), postrider.inbox_is_new(text, text, text, text, text, text),
    postrider.inbox_key(text, text), postrider.inbox_refuse(text, text, text, text) TO :"role";
-- Inboxes: inserting and processing. inbox_grant gives the rights on the tables of inboxes.
GRANT INSERT ON TABLE postrider.inbox_delta TO :"role";
GRANT INSERT, UPDATE ON TABLE postrider.inbox_order TO :"role";
GRANT INSERT, UPDATE, DELETE ON TABLE postrider.inbox_wake TO :"role";
GRANT EXECUTE ON FUNCTION postrider.inbox_next(text, text, integer, interval),
    postrider.inbox_done(text, text[], bigint), postrider.inbox_extend(text, text[], bigint, interval),
    postrider.inbox_fail(text, text, text, bigint, interval),
    postrider.inbox_heads(postrider.inbox, integer, timestamptz, timestamptz),
    postrider.inbox_settle(postrider.inbox, text[]), postrider.inbox_lock(postrider.inbox, text[]),
    postrider.inbox_passed(postrider.inbox, text[]), postrider.inbox_is_next(postrider.inbox),
    postrider.inbox_claim_lost(text, text[]), postrider.replay_inbox_messages(text, text[]) TO :"role";
-- Storing messages from Kafka.
GRANT SELECT, INSERT, UPDATE ON TABLE postrider.inbox_offset TO :"role";
-- Table outboxes: reading.
GRANT USAGE ON SCHEMA postrider_outbox TO :"role";
GRANT SELECT ON TABLE postrider.table_outbox, postrider.table_outbox_group TO :"role";
GRANT EXECUTE ON FUNCTION postrider.outbox_get(text), postrider.outbox_triggers(name), postrider.outbox_source(name),
    postrider.outbox_tables(regclass), postrider.outbox_ways(regclass), postrider.outbox_unfit(regclass),
    postrider.outbox_other_triggers(regclass),
    postrider.outbox_writers_without_rights(text), postrider.outbox_status(text) TO :"role";
-- Table outboxes: acknowledging claim checks. outbox_grant gives the rights on the tables of events.
GRANT INSERT ON TABLE postrider.table_outbox_group TO :"role";
GRANT EXECUTE ON FUNCTION postrider.outbox_rows_consumed(text, bigint, text),
    postrider.outbox_add_group(text, text) TO :"role";
