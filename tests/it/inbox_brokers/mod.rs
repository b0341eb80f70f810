//! `postrider inbox run` from brokers that acknowledge messages one by one: each message is stored once, and those of
//! an aggregate in order, whatever is killed. [`broker`] is what a broker has to do for the tests, [`scenarios`] are
//! those that all brokers pass, and each broker has a file with its own.

mod broker;
mod nats;
mod rabbitmq;
mod redis;
mod scenarios;

/// The tests that every broker passes.
macro_rules! acknowledged_messages {
    ($broker:ty: $($scenario:ident)*) => {
        $(
            #[tokio::test]
            async fn $scenario() {
                crate::inbox_brokers::scenarios::$scenario::<$broker>().await;
            }
        )*
    };
    ($broker:ty) => {
        crate::inbox_brokers::acknowledged_messages!($broker:
            each_event_is_stored_once_and_in_order_through_kills_of_all
            of_two_processes_one_reads_and_the_other_follows_it
            a_process_that_was_frozen_stores_nothing_twice_and_swaps_nothing
            poison_is_stored_as_dead_and_later_messages_go_on
            a_message_that_the_table_refuses_for_ever_holds_later_ones_back_until_it_is_accepted
            a_broker_that_is_down_at_the_start_and_what_is_missing_are_waited_for
            a_broker_that_is_frozen_is_waited_for
            nothing_is_read_while_the_inbox_is_full
            database_sessions_that_are_ended_repeat_nothing
            a_login_is_checked_over_tls_and_is_not_shown
        );

        /// For `scripts/test long`.
        #[tokio::test]
        #[ignore = "takes minutes"]
        async fn two_hundred_thousand_events_are_stored_once_and_in_order_through_kills_of_all() {
            crate::inbox_brokers::scenarios::through_kills::<$broker>(
                200_000,
                std::time::Duration::from_mins(2),
            )
            .await;
        }
    };
}
pub(crate) use acknowledged_messages;
