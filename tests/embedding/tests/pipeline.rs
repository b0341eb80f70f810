//! The source, the store and the sink of this package in the product's pipeline: what is published, in which order, and
//! what a failure costs.
#![expect(clippy::unwrap_used, reason = "a test helper that fails stops its test with the reason")]

mod harness;

use embedding::folder;
use harness::{Fault, Gate, Place, Sent, await_that, event, events};
use postrider_core::error::{Failure, HaltReason};
use postrider_core::status::PipelineState;
use std::collections::BTreeSet;
use std::time::Duration;

/// Events of four aggregates in two destinations.
#[test]
fn events_arrive_once_and_in_the_order_of_their_aggregates() {
    let place = Place::new();
    for number in 0..100 {
        place.commit(&events(number * 5, 5));
    }
    let running = place.run();
    running.await_published(500);
    assert_eq!(running.stop(), "stopped");
    place.assert_in_order_without_repeats(500);
    // What is published is confirmed, and what is confirmed is removed.
    assert_eq!(place.transactions(), 0);
    assert_eq!(place.stored().watermark.offset().get(), 101);
    assert_eq!(place.stored().partial, None);
}

#[test]
fn events_committed_while_the_pipeline_runs_arrive() {
    let place = Place::new();
    let running = place.run();
    for number in 0..20 {
        place.commit(&events(number, 1));
        running.await_published(number + 1);
    }
    assert_eq!(running.stop(), "stopped");
    place.assert_in_order_without_repeats(20);
}

/// The bound on events in flight is 10: the intake shuts many times within one transaction.
#[test]
fn transaction_larger_than_the_limits_is_published() {
    let place = Place::new();
    place.commit(&events(0, 3000));
    place.commit(&events(3000, 1));
    let running = place.run_with(|setup| setup.in_flight = 10);
    running.await_published(3001);
    assert_eq!(running.stop(), "stopped");
    place.assert_in_order_without_repeats(3001);
}

#[test]
fn restart_goes_on_where_the_last_run_has_stopped() {
    let place = Place::new();
    for round in 0..5 {
        for number in 0..10 {
            place.commit(&events(round * 100 + number * 10, 10));
        }
        let running = place.run();
        running.await_published(100);
        assert_eq!(running.stop(), "stopped");
    }
    place.assert_in_order_without_repeats(500);
}

/// Everything in flight is lost with the process, and the files that were not confirmed are still there.
#[test]
fn crash_repeats_only_what_the_cursor_does_not_have_and_loses_nothing() {
    let place = Place::new();
    for number in 0..60 {
        place.commit(&events(number * 10, 10));
    }
    // The sink takes all records and writes 305 of them.
    let gate = Gate::closed_after(305);
    let running = place.run_with(|setup| setup.gate = gate.clone());
    await_that("the records that the sink has written to be published", || {
        (running.published() == 305 && gate.swallowed() > 100, running.published())
    });
    await_that("a cursor within a transaction", || {
        let stored = place.stored();
        (stored.partial.is_some_and(|at| at.ordinal == 5), stored)
    });
    running.crash();
    let stored = place.stored();
    assert_eq!(stored.watermark.offset().get(), 31, "30 transactions are whole");
    let before = place.published_ids();
    assert_eq!(before.len(), 305);

    let running = place.run();
    running.await_published(295);
    assert_eq!(running.stop(), "stopped");
    // The cursor was written after the last acknowledgement, also within the transaction: nothing is repeated.
    place.assert_in_order_without_repeats(600);
}

/// A crash at any moment: the cursor is some way behind what is published.
#[test]
fn crashes_at_any_moment_repeat_only_what_is_above_the_cursor() {
    let place = Place::new();
    for number in 0..200 {
        place.commit(&events(number * 10, 10));
    }
    let mut allowed = 0;
    for crash in 0..8 {
        let gate = Gate::closed_after(150 + crash * 7);
        let running = place.run_with(|setup| {
            setup.gate = gate.clone();
            // In the first run no cursor is written at all.
            let millis = if crash == 0 { 3_600_000 } else { 20 };
            setup.cursor_interval = Duration::from_millis(millis);
        });
        await_that("the gate to close", || (gate.swallowed() > 50, gate.swallowed()));
        running.crash();
        // What is on the disk and at or above the cursor is repeated.
        let repeated = place.ids_at_or_above(place.stored());
        let published: BTreeSet<u64> = place.published_ids().into_iter().collect();
        allowed += published.intersection(&repeated).count();
    }
    assert!(allowed >= 100, "the first run wrote no cursor");
    let running = place.run();
    await_that("all events", || {
        let distinct: BTreeSet<u64> = place.published_ids().into_iter().collect();
        (distinct.len() == 2000, distinct.len())
    });
    assert_eq!(running.stop(), "stopped");
    let repeats = place.assert_in_order(2000);
    assert!(repeats <= allowed, "{repeats} repeats, and {allowed} events were above the cursors");
}

/// Checked by the store and the source of the harness at each call, in every test; here with many small steps, and with
/// a store that takes its time.
#[test]
fn nothing_is_confirmed_before_it_is_acknowledged_and_its_cursor_stored() {
    let place = Place::new();
    for number in 0..300 {
        place.commit(&events(number * 2, 2));
    }
    let running = place.run_with(|setup| {
        setup.cursor_interval = Duration::from_millis(1);
        setup.write_takes = Duration::from_millis(2);
        setup.in_flight = 10;
    });
    running.await_published(600);
    assert_eq!(running.stop(), "stopped");
    place.assert_in_order_without_repeats(600);
    let calls = place.calls();
    assert!(calls.confirmed.len() > 3, "{calls:?}");
    assert!(calls.confirmed.is_sorted() && calls.stored.is_sorted(), "{calls:?}");
    assert_eq!(calls.confirmed.last(), calls.stored.last(), "{calls:?}");
}

/// While the store fails, nothing is confirmed, and nothing is removed.
#[test]
fn store_that_fails_is_tried_again_and_nothing_is_confirmed_meanwhile() {
    let place = Place::new();
    place.commit(&events(0, 10));
    let running = place.run_with(|setup| setup.write_faults = 3);
    await_that("three failed writes", || {
        (running.status().source_reconnects_total == 3, running.status().source_reconnects_total)
    });
    await_that("the cursor", || (place.calls().stored.last() == Some(&2), place.calls().stored));
    assert_eq!(running.stop(), "stopped");
    place.assert_in_order_without_repeats(10);
}

#[test]
fn source_that_fails_is_connected_again_after_growing_pauses() {
    let place = Place::new();
    for number in 0..10 {
        place.commit(&events(number * 10, 10));
    }
    // Four attempts fail; then the first stream fails after one batch.
    let running = place.run_with(|setup| {
        setup.faults = vec![
            Fault::Connect,
            Fault::Connect,
            Fault::Connect,
            Fault::Connect,
            Fault::AfterBatches(1),
        ];
    });
    await_that("the outage in the status", || {
        let status = running.status();
        let down = status.state == PipelineState::SourceDown;
        (down && status.reason.as_deref() == Some("the cable is out"), status.state)
    });
    running.await_published(100);
    // Everything may be published before the stream fails for the fifth time.
    await_that("the end of the last outage", || {
        let status = running.status();
        let seen = (status.state, status.source_reconnects_total, place.calls().connected.len());
        (seen == (PipelineState::Streaming, 5, 6), seen)
    });
    assert_eq!(running.stop(), "stopped");
    // What was in flight when the stream failed is not sent again.
    place.assert_in_order_without_repeats(100);
    // A pause is at least half of 200 ms, 400 ms, 800 ms.
    let connected = place.calls().connected;
    for (pause, pair) in [100, 200, 400, 800].into_iter().zip(connected.windows(2)) {
        let paused = pair[1].1 - pair[0].1;
        assert!(paused >= Duration::from_millis(pause), "{paused:?} after {pause} ms");
    }
}

#[test]
fn failure_that_no_retry_helps_halts_when_everything_before_is_published() {
    let place = Place::new();
    place.commit(&events(0, 100));
    let running = place.run_with(|setup| {
        let meaning = "the rest is in the archive, and not in the database";
        let halt =
            Failure::halt(HaltReason::SlotLost, "the log is truncated", meaning, "restore it");
        setup.faults = vec![Fault::Halt(1, halt)];
    });
    let halt = running.halted();
    assert_eq!(halt.to_string(), "PR001 slot_lost: the log is truncated");
    assert_eq!(halt.meaning, "the rest is in the archive, and not in the database");
    place.assert_in_order_without_repeats(100);
    assert_eq!(place.stored().watermark.offset().get(), 2);
}

#[test]
fn record_that_the_sink_refuses_halts_before_it() {
    let place = Place::new();
    place.commit(&events(0, 7));
    let mut large = events(7, 3);
    large[1].payload = Some(format!("\"{}\"", "x".repeat(2000)));
    place.commit(&large);
    let running = place.run_with(|setup| setup.line_bytes_max = 1000);
    let halt = running.halted();
    assert_eq!(halt.reason, HaltReason::PoisonEvent);
    for words in ["event \"8\"", "0/2:1", "\"orders\"", "the destination takes 1000"] {
        assert!(halt.message.contains(words), "{words}: {}", halt.message);
    }
    assert!(!halt.message.contains("xx") && !halt.meaning.contains("database"), "{halt:?}");
    place.assert_in_order_without_repeats(8);
    // The cursor is before the event, within its transaction.
    assert_eq!(place.stored().to_string().split(' ').nth(2), Some("0/2:1"));

    // With a larger limit it goes on there.
    let running = place.run();
    running.await_published(2);
    assert_eq!(running.stop(), "stopped");
    place.assert_in_order_without_repeats(10);
}

#[test]
fn poison_row_halts_and_the_cursor_stays_before_it() {
    let place = Place::new();
    place.commit(&events(0, 3));
    let mut rows = events(3, 4);
    rows[2].aggregate_id = None;
    let number = place.commit(&rows);
    let halt = place.run().halted();
    assert_eq!(halt.reason, HaltReason::PoisonEvent);
    assert!(halt.message.contains("\"aggregate_id\" is NULL"), "{}", halt.message);
    assert!(
        halt.hint.contains("let the source send") && !halt.hint.contains("WAL"),
        "{}",
        halt.hint
    );
    place.assert_in_order_without_repeats(5);
    assert_eq!(place.stored().to_string().split(' ').nth(2), Some("0/2:2"));
    // The same again after a restart, and nothing is repeated.
    assert_eq!(place.run().halted(), halt);
    place.assert_in_order_without_repeats(5);

    // The row is corrected in the source, as the hint says.
    rows[2].aggregate_id = event(5).aggregate_id;
    place.correct(number, &rows);
    let running = place.run();
    running.await_published(2);
    assert_eq!(running.stop(), "stopped");
    place.assert_in_order_without_repeats(7);
}

/// A record that the sink has lost track of is published again, from the cursor.
#[test]
fn broken_sink_starts_again_from_the_cursor() {
    let place = Place::new();
    for number in 0..50 {
        place.commit(&events(number * 10, 10));
    }
    let gate = Gate::closed_after(123);
    let running = place.run_with(|setup| setup.gate = gate.clone());
    await_that("records in flight", || (gate.swallowed() > 50, gate.swallowed()));
    running.await_published(123);
    gate.break_and_open();
    running.await_published(500);
    assert_eq!(running.status().sink.resets_total, 1);
    assert_eq!(running.stop(), "stopped");
    place.assert_in_order_without_repeats(500);
}

#[test]
fn stop_that_the_sink_does_not_answer_ends_after_its_grace() {
    let place = Place::new();
    place.commit(&events(0, 20));
    let gate = Gate::closed_after(4);
    let running = place.run_with(|setup| {
        setup.gate = gate.clone();
        setup.shutdown_grace = Duration::from_millis(100);
    });
    await_that("a cursor behind the fourth event", || {
        (place.stored().partial.is_some_and(|at| at.ordinal == 4), place.stored())
    });
    assert_eq!(running.stop(), "stopped");
    let running = place.run();
    running.await_published(16);
    assert_eq!(running.stop(), "stopped");
    place.assert_in_order_without_repeats(20);
}

/// Offsets of two histories are not comparable: with the old cursor the first events of the new spool would be skipped.
#[test]
fn source_that_was_recreated_is_refused_until_the_cursor_is_removed() {
    let place = Place::new();
    place.commit(&events(0, 10));
    let running = place.run();
    running.await_published(10);
    assert_eq!(running.stop(), "stopped");

    place.recreate_spool();
    place.commit(&events(10, 10));
    let halt = place.run().halted();
    assert_eq!(halt.reason, HaltReason::OtherHistory);
    place.assert_in_order_without_repeats(10);

    place.remove_cursor();
    let running = place.run();
    running.await_published(10);
    assert_eq!(running.stop(), "stopped");
    place.assert_in_order_without_repeats(20);
    let position =
        |line: &serde_json::Value| line["headers"]["position"].as_str().unwrap().to_owned();
    let lines = folder::read(&place.out(), "orders").unwrap();
    let positions: Vec<String> = lines.iter().map(position).collect();
    assert!(positions.is_sorted(), "a new history sorts after the old one: {positions:?}");
}

/// The source is back at an earlier state: its next numbers were published for other events.
#[test]
fn source_that_ends_below_the_cursor_is_refused() {
    let place = Place::new();
    place.store("00000001 0/5");
    place.set_history(1);
    place.commit(&events(0, 1));
    assert_eq!(place.run().halted().reason, HaltReason::PositionAhead);
}

#[test]
fn cursor_file_with_something_else_in_it_halts() {
    let place = Place::new();
    place.store("nonsense");
    assert_eq!(place.run().halted().reason, HaltReason::SchemaUnfit);
}

#[test]
fn outbox_that_needs_parking_is_refused() {
    let place = Place::new();
    let running = place.run_with(|setup| {
        setup.columns.push((postrider::outbox::Role::AvailableAt, "due_at".to_owned()));
    });
    let halt = running.halted();
    assert_eq!(halt.reason, HaltReason::NotApplicable);
    assert!(halt.message.contains("due_at"), "{}", halt.message);
}

/// With a wrong name every row would be a row of another table, and every event would be skipped.
#[test]
fn row_of_another_table_before_the_outbox_is_described_halts() {
    let place = Place::new();
    let changes = [Sent::Table(1, "event"), Sent::Begin(1), Sent::Row(1, 0), Sent::Commit(1)];
    let halt = place.run_script(&changes).halted();
    assert_eq!(halt.reason, HaltReason::TableUnfit);
    for text in [&halt.message, &halt.hint] {
        assert!(text.contains("spool.event ") || text.contains("spool.event,"), "{text}");
        assert!(text.contains("spool.events"), "{text}");
    }
    assert_eq!(place.stored().watermark.offset().get(), 0, "nothing is skipped");
    assert!(place.calls().confirmed.is_empty());
}

#[test]
fn rows_of_other_tables_are_skipped_when_the_outbox_is_described() {
    let place = Place::new();
    let running = place.run_script(&[
        Sent::Table(2, "events"),
        Sent::Table(1, "audit"),
        Sent::Begin(1),
        Sent::Row(1, 7),
        Sent::Row(2, 0),
        Sent::Commit(1),
    ]);
    running.await_published(1);
    assert_eq!(running.stop(), "stopped");
    place.assert_in_order_without_repeats(1);
    assert_eq!(place.stored().watermark.offset().get(), 2);
}

/// The offsets of a source may be 1, 2, 3: the smallest progress is confirmed, so that the source can remove something.
#[test]
fn progress_without_events_is_confirmed() {
    let transaction = [Sent::Begin(1), Sent::Other, Sent::Other, Sent::Commit(1)];
    for (changes, upto) in [(&transaction[..], 2), (&[Sent::Heartbeat(9)], 9)] {
        let place = Place::new();
        let running = place.run_script(changes);
        await_that("the confirmation", || {
            (place.calls().confirmed == [upto], place.calls().confirmed)
        });
        assert_eq!(place.stored().watermark.offset().get(), upto);
        assert_eq!(running.stop(), "stopped");
    }
}

#[test]
fn change_that_waits_for_an_answer_halts_when_everything_before_is_published() {
    let place = Place::new();
    let halt = place
        .run_script(&[
            Sent::Table(2, "events"),
            Sent::Begin(1),
            Sent::Row(2, 0),
            Sent::Commit(1),
            Sent::Blocked,
        ])
        .halted();
    assert_eq!(halt.reason, HaltReason::Protocol);
    assert!(halt.message.contains("Change::Blocked"), "{}", halt.message);
    place.assert_in_order_without_repeats(1);
    assert_eq!(place.stored().watermark.offset().get(), 2);
}

#[test]
fn transaction_out_of_order_halts_with_the_rules_for_a_source() {
    let place = Place::new();
    let halt = place.run_script(&[Sent::Begin(4), Sent::Begin(2)]).halted();
    assert_eq!(halt.reason, HaltReason::Protocol);
    assert!(halt.message.starts_with("the source sent the stream out of order"), "{halt}");
    assert!(halt.hint.contains("correct the source"), "{}", halt.hint);
}

#[test]
fn panic_of_the_source_is_in_the_status() {
    let place = Place::new();
    let running = place.run_script(&[Sent::Panic]);
    await_that("the status", || {
        (running.status().state == PipelineState::Halted, running.status().state)
    });
    let reason = running.status().reason;
    assert_eq!(reason.as_deref(), Some("the pipeline's thread panicked: see the log"));
}

#[test]
fn status_names_the_source_and_no_slot() {
    let place = Place::new();
    place.commit(&events(0, 10));
    let running = place.run();
    running.await_published(10);
    await_that("the state", || {
        (running.status().state == PipelineState::Streaming, running.status().state)
    });
    let status = running.status();
    assert!(status.from.source.starts_with("spool "), "{}", status.from.source);
    assert_eq!(
        (status.from.slot.as_str(), status.slot_state, status.slot_retained_bytes),
        ("", None, None)
    );
    assert!(status.belongs_to.is_some_and(|text| text.starts_with("mode embedded, folder")));
    assert!(status.source_contact_seconds.is_some());
    let handle = running.handle();
    assert_eq!(running.stop(), "stopped");
    assert_eq!(handle.read().state, PipelineState::Stopped);
}

/// The sink is named in a configuration file, like one of the product's.
#[test]
fn sink_is_read_from_a_configuration_file() {
    let place = Place::new();
    place.commit(&events(0, 10));
    let text = place.configuration();
    let config = harness::configured(&text).unwrap();
    let running = place.run_configured(&config.specs[0]);
    running.await_published(10);
    assert_eq!(running.stop(), "stopped");
    place.assert_in_order_without_repeats(10);
    let mistakes = harness::configured(&text.replace("directory", "dir")).unwrap_err();
    assert!(mistakes.contains("sink.directory: is missing"), "{mistakes}");
}
