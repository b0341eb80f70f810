//! A row that can't be read: the relay halts when all before it is done.

use super::check;
use expect_test::expect;

#[test]
fn what_cannot_be_read_halts_once_all_before_it_is_resolved_and_confirmed() {
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
            unreadable        │  (shut)
            acked 1           │ published (shut)
            written           │ write cursor 0/10+0/20:2 (shut)
            written           │ halt: too large to be read (shut)
        "#]],
    );
}

/// A person passes over it: nothing before it may be left out.
#[test]
fn what_cannot_be_read_does_not_halt_while_what_is_before_it_is_in_doubt() {
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
            unreadable        │  (shut)
            refused 0         │  (shut)
            acked 1           │ published, restart: Refused(Kafka(10))
            start 16          │ 
            begin 32          │ 
            event a           │ publish #2 (shut)
            unreadable        │  (shut)
            unknown 2         │ restart: Unknown
            start 16          │ 
            begin 32          │ 
            event a           │ publish #3 (shut)
            unreadable        │  (shut)
            lost              │ restart: Unknown
            start 16          │ 
            begin 32          │ 
            event a           │ publish #4 (shut)
            unreadable        │  (shut)
            acked 4           │ published, write cursor 0/10+0/20:1 (shut)
            written           │ halt: too large to be read (shut)
        "#]],
    );
}

#[test]
fn what_cannot_be_read_is_nothing_to_who_stops() {
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
            drain             │  (shut)
            unreadable        │  (shut)
            acked 0           │ published, write cursor 0/10+0/20:1 (shut)
            written           │ drained (shut)
        "#]],
    );
}
