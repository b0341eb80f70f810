//! What can't be run where the others run, and what holds it instead.

/// One such command or statement.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Answer {
    /// What it contains.
    pub(super) matches: &'static str,
    /// Why it is not run here, and by which test, or check below, it is.
    pub(super) why: &'static str,
}

pub(super) const ANSWERS: &[Answer] = &[
    Answer {
        matches: "scripts/demo",
        why: "the tests of `demo` run the same program; its options are parsed below",
    },
    Answer { matches: "scripts/test", why: "runs this test" },
    Answer {
        matches: "postrider init",
        why: "writes a file where the page has one already; the tests of `init` run it, its options are parsed below",
    },
    Answer { matches: "cargo install", why: "builds the binary that all other blocks run" },
    Answer { matches: "kafka-acls.sh", why: "the broker here has no authorizer" },
    Answer {
        matches: "postrider find",
        why: "find::published_event_is_where_a_consumer_reads_it_and_after_a_restart_only_the_position_proves_it",
    },
    Answer { matches: "postrider tail", why: "tail::stopped_pipeline_is_peeked_and_nothing_moves" },
    Answer {
        matches: "postrider parked show",
        why: "parked_cli::show_has_headers_and_key_and_the_payload_only_when_asked",
    },
    Answer {
        matches: "postrider parked retry",
        why: "parked_cli::a_request_names_its_ids_first_and_is_kept_with_who_and_why",
    },
    Answer {
        matches: "postrider parked replace",
        why: "parked_cli::replace_keeps_the_new_payload_in_the_request",
    },
    Answer {
        matches: "postrider parked skip",
        why: "parked_cli::what_can_not_be_done_is_named_and_the_rest_is_done",
    },
    Answer {
        matches: "postrider repair",
        why: "refused beside a live relay, as here; repair::slot_that_was_dropped_is_repaired_under_load",
    },
    Answer {
        matches: "postrider replay --id",
        why: "selectors::ids_and_an_aggregate_are_found_in_the_log_and_the_rest_is_listed",
    },
    Answer {
        matches: "postrider replay --resume",
        why: "interrupted::a_killed_replay_goes_on_where_it_was",
    },
    Answer {
        matches: "pg_get_wal_record_info",
        why: "operations::a_transaction_that_can_not_be_decoded_is_passed_over_in_the_cursor_row",
    },
    Answer {
        matches: "partial_ordinal = 1 + 1",
        why: "operations::an_event_that_can_not_be_published_is_passed_over_by_its_position",
    },
];

/// The answer to a command or a block of SQL, where it is one of those.
pub(super) fn to(text: &str) -> Option<&'static Answer> {
    ANSWERS.iter().find(|answer| text.contains(answer.matches))
}
