-- An administrator of consumer groups reads, and creates, drops, moves and evicts groups. It neither writes logs nor
-- polls.
GRANT USAGE ON SCHEMA postrider, postrider_log, postrider_inbox TO :"role";
GRANT SELECT ON TABLE postrider.toolkit_migration, postrider.event_log, postrider.event_log_head,
    postrider.consumer_group, postrider.consumer_group_partition, postrider.consumer_group_state,
    postrider.consumer_seen, postrider.consumer, postrider.consumer_group_lag, postrider.consumer_offsets TO :"role";
GRANT INSERT, UPDATE, DELETE ON TABLE postrider.consumer_group, postrider.consumer_group_partition,
    postrider.consumer_group_state, postrider.consumer_seen TO :"role";
GRANT USAGE ON SEQUENCE postrider.lease_token TO :"role";
GRANT EXECUTE ON FUNCTION postrider.hash_partition(text, integer), postrider.position_text(bigint, pg_lsn, bigint),
    postrider.log_head(text), postrider.log_read(text, bigint, integer), postrider.consumer_lag(text),
    postrider.check_name(text, text), postrider.check_number(text, bigint, bigint, bigint),
    postrider.check_read_committed(text), postrider.no_group(text), postrider.lease_over(timestamptz, timestamptz),
    postrider.group_state(text), postrider.part_heads(text), postrider.part_state(text, smallint[]),
    postrider.group_done_to(text),
    postrider.log_children(text), postrider.log_expired_to(text, interval), postrider.log_blockers(text, interval),
    postrider.group_status(text, integer), postrider.log_offset_at(text, timestamptz) TO :"role";
-- What an administrator calls, and the functions that these call.
GRANT EXECUTE ON FUNCTION postrider.create_consumer_group(text, text, text, bigint, boolean),
    postrider.drop_consumer_group(text, boolean), postrider.seek_offset(text, text, bigint),
    postrider.evict_consumer_group(text), postrider.resume_consumer_group(text),
    postrider.group_append(postrider.consumer_group_state[]),
    postrider.group_lock(text, text, bigint), postrider.state_closed(postrider.consumer_group_state) TO :"role";
-- Inboxes: reading.
GRANT SELECT ON TABLE postrider.inbox, postrider.inbox_delta, postrider.inbox_order,
    postrider.inbox_wake, postrider.inbox_position TO :"role";
GRANT EXECUTE ON FUNCTION postrider.inbox_get(text, boolean), postrider.inbox_table(postrider.inbox),
    postrider.inbox_object(text, text), postrider.inbox_number(postrider.inbox), postrider.inbox_stats(text),
    postrider.inbox_health(text), postrider.inbox_status(text), postrider.inbox_ordering_gaps(text),
    postrider.inbox_all_gaps(text), postrider.inbox_is_my_partition(text, integer, integer),
    postrider.inbox_day(timestamptz) TO :"role";
-- Inboxes: creating, changing and dropping them; the tables belong to the role that creates them.
GRANT CREATE ON SCHEMA postrider_inbox TO :"role";
GRANT INSERT, UPDATE, DELETE ON TABLE postrider.inbox, postrider.inbox_delta, postrider.inbox_order,
    postrider.inbox_wake TO :"role";
GRANT EXECUTE ON FUNCTION postrider.create_inbox(text, text, integer, integer, boolean),
    postrider.drop_inbox(text, boolean, boolean), postrider.enable_inbox_tracking(text, regclass, text, text, text,
    text, text, text, integer, integer), postrider.enable_inbox_ordering(text, text, bigint),
    postrider.disable_inbox_ordering(text, boolean), postrider.enable_inbox_priority(text, jsonb, integer),
    postrider.disable_inbox_priority(text, boolean), postrider.inbox_grant(text), postrider.inbox_views(text),
    postrider.inbox_check_name(text), postrider.inbox_has_rule(postrider.inbox), postrider.inbox_inserted(),
    postrider.inbox_updated(), postrider.inbox_deleted(), postrider.inbox_truncated(), postrider.inbox_arrived(),
    postrider.inbox_settle(postrider.inbox, text[]), postrider.inbox_lock(postrider.inbox, text[]),
    postrider.inbox_passed(postrider.inbox, text[]), postrider.inbox_is_next(postrider.inbox),
    postrider.inbox_claim_lost(text, text[]), postrider.replay_inbox_messages(text, text[]),
    postrider.skip_inbox_messages(text, text[], text), postrider.skip_inbox_gap(text, text),
    postrider.inbox_recount(text), postrider.inbox_drain(text, integer, interval, interval),
    postrider.inbox_fold(text, integer) TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE postrider.inbox_offset TO :"role";
-- Table outboxes: reading.
GRANT USAGE ON SCHEMA postrider_outbox TO :"role";
GRANT SELECT ON TABLE postrider.table_outbox, postrider.table_outbox_group TO :"role";
GRANT EXECUTE ON FUNCTION postrider.outbox_get(text), postrider.outbox_triggers(name), postrider.outbox_source(name),
    postrider.outbox_tables(regclass), postrider.outbox_ways(regclass), postrider.outbox_unfit(regclass),
    postrider.outbox_other_triggers(regclass),
    postrider.outbox_writers_without_rights(text), postrider.outbox_status(text) TO :"role";
-- Table outboxes: enabling and disabling them, as a role that has the rights of the table's owner.
GRANT CREATE ON SCHEMA postrider_outbox TO :"role";
GRANT INSERT, UPDATE, DELETE ON TABLE postrider.table_outbox, postrider.table_outbox_group TO :"role";
GRANT EXECUTE ON FUNCTION postrider.enable_outbox(regclass, text, integer, integer, name[], boolean),
    postrider.disable_outbox(text, boolean, boolean), postrider.outbox_refresh(text), postrider.outbox_grant(text),
    postrider.outbox_cover(regclass, name), postrider.outbox_function(text), postrider.outbox_create(text),
    postrider.outbox_owned(regclass), postrider.outbox_check_columns(regclass, name[]),
    postrider.outbox_object(text, text), postrider.outbox_drop_group(text, text) TO :"role";
-- Table outboxes: acknowledging claim checks. outbox_grant gives the rights on the tables of events.
GRANT INSERT ON TABLE postrider.table_outbox_group TO :"role";
GRANT EXECUTE ON FUNCTION postrider.outbox_rows_consumed(text, bigint, text),
    postrider.outbox_add_group(text, text) TO :"role";
