//! A row that can't be read: the relay halts when everything before it is resolved.

use super::check;
use expect_test::expect;

#[test]
fn unreadable_change_halts_once_all_before_it_is_resolved_and_confirmed() {
    check(
        "start 16
         begin 32
         event a
         event b
         acked 0
         unreadable
         acked 1
         written
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            acked 0           │ published, write cursor 0/10+0/20:1
            unreadable        │  (closed)
            acked 1           │ published (closed)
            written           │ write cursor 0/10+0/20:2 (closed)
            written           │ halt: too large to be read (closed)
        "#]],
    );
}

/// An operator skips the change, so everything before it must be published.
#[test]
fn unreadable_change_does_not_halt_while_an_earlier_event_is_uncertain() {
    check(
        "start 16
         begin 32
         event a
         event b
         unreadable
         refused 0
         acked 1
         start 16
         begin 32
         event a
         unreadable
         unknown 2
         start 16
         begin 32
         event a
         unreadable
         lost
         start 16
         begin 32
         event a
         unreadable
         acked 4
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            event b           │ publish #1
            unreadable        │  (closed)
            refused 0         │  (closed)
            acked 1           │ published, restart: Refused(Native(10))
            start 16          │ 
            begin 32          │ 
            event a           │ publish #2 (closed)
            unreadable        │  (closed)
            unknown 2         │ restart: Unknown
            start 16          │ 
            begin 32          │ 
            event a           │ publish #3 (closed)
            unreadable        │  (closed)
            lost              │ restart: Unknown
            start 16          │ 
            begin 32          │ 
            event a           │ publish #4 (closed)
            unreadable        │  (closed)
            acked 4           │ published, write cursor 0/10+0/20:1 (closed)
            written           │ halt: too large to be read (closed)
        "#]],
    );
}

#[test]
fn unreadable_change_does_not_stop_a_drain() {
    check(
        "start 16
         begin 32
         event a
         drain
         unreadable
         acked 0
         written",
        &expect![[r#"
            start 16          │ confirm 0/10
            begin 32          │ 
            event a           │ publish #0
            drain             │  (closed)
            unreadable        │  (closed)
            acked 0           │ published, write cursor 0/10+0/20:1 (closed)
            written           │ drained (closed)
        "#]],
    );
}
