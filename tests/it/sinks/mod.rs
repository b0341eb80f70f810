//! The conformance test: what `docs/sinks.md` promises of every sink, on the real server of each.
//!
//! [`server`] is what a sink's server has to do for the test, [`scenarios`] are the tests, [`kills`] is the long one.
//! Each sink has a file with its server and with the tests that only it has. `conformance!` makes the tests of a sink.

mod claims;
mod http;
mod kafka;
mod kafka_transactions;
mod kafka_transactions_bad;
mod kafka_transactions_changed;
mod kills;
mod nats;
mod nats_cluster;
mod nats_logins;
mod pipeline;
mod rabbitmq;
mod rabbitmq_cluster;
mod rabbitmq_only;
mod rabbitmq_streams;
mod redis;
mod redis_only;
mod scenarios;
mod server;
mod stream_reader;
pub(crate) mod transaction_caller;

/// The tests that every sink passes, of the server `$server`.
macro_rules! conformance {
    ($server:ty: $($scenario:ident)*) => {
        $(
            #[tokio::test]
            async fn $scenario() {
                crate::sinks::scenarios::$scenario::<$server>().await;
            }
        )*
    };
    ($server:ty) => {
        crate::sinks::conformance!($server:
            events_arrive_in_order_with_all_their_parts
            lost_connections_lose_and_swap_nothing
            killed_servers_lose_and_swap_nothing
            frozen_server_is_waited_for
            killed_relays_repeat_a_bounded_number
            relay_that_froze_publishes_nothing_out_of_order
            event_that_is_too_large_parks_its_aggregate_alone
            parked_event_is_published_behind_newer_ones
            destination_that_is_missing_parks_its_events_alone
            destination_that_goes_away_is_waited_for
            server_that_is_down_at_the_start_is_waited_for
            withdrawn_rights_are_named_and_waited_for
            certificate_for_another_name_is_refused
            names_that_the_server_does_not_take_stop_nothing
            line_breaks_in_headers_inject_nothing
            memory_is_bounded_while_the_server_is_frozen
            check_names_what_is_wrong
            cloud_events_are_read_by_their_own_library
        );

        #[tokio::test]
        #[ignore = "takes minutes"]
        async fn hundred_thousand_events_survive_kills() {
            crate::sinks::kills::hundred_thousand_events_survive_kills::<$server>().await;
        }
    };
}
pub(crate) use conformance;
