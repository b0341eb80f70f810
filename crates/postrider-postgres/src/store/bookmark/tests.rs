use super::{next, *};
use crate::wire::Lsn;

fn bookmark(name: &str, held_bytes: u64) -> Bookmark {
    Bookmark {
        name: name.to_owned(),
        note: None,
        slot: slot_name(name, 1),
        lsn: Some(Lsn::new(1)),
        timeline: 1,
        messages: false,
        created_at: String::new(),
        created: Timestamp::default(),
        expires_at: None,
        state: BookmarkState::Usable,
        restart_lsn: None,
        confirmed_lsn: None,
        active_pid: None,
        held_bytes,
    }
}

#[test]
fn names_fit_a_command_line_and_slots_fit_postgresql() {
    for name in ["a", "before-fix", "2026-01-02.x_Y", &"x".repeat(63)] {
        assert!(name_allowed(name), "{name}");
        let slot = slot_name(name, u32::MAX);
        assert!(crate::names::slot_name_allowed(&slot), "{slot}");
    }
    for name in ["", "a b", "ä", "a/b", "a\n", &"x".repeat(64)] {
        assert!(!name_allowed(name), "{name:?}");
    }
    assert_eq!(slot_name("Before-Fix", 0xABC), "postrider_bm_before_fix_000abc");
}

#[test]
fn the_oldest_goes_while_all_together_hold_back_too_much() {
    let there = [bookmark("new", 10), bookmark("old", 100), bookmark("older", 200)];
    assert_eq!(next(&there, &[], 200), None);
    assert_eq!(next(&there, &[], 199), Some((2, DropReason::Budget)));
    assert_eq!(next(&there[..2], &[], 50), Some((1, DropReason::Budget)));
    assert_eq!(next(&there[..2], &["new".to_owned()], 50), Some((0, DropReason::Expired)), "first");
    assert_eq!(next(&[], &[], 0), None);
}

#[test]
fn what_is_being_read_stays_and_what_is_lost_holds_nothing() {
    let mut read = bookmark("read", 200);
    read.active_pid = Some(7);
    let there = [bookmark("new", 10), read];
    assert_eq!(next(&there, &["read".to_owned()], 50), None);
    let mut lost = bookmark("lost", 200);
    lost.state = BookmarkState::SlotLost { why: "wal_removed".to_owned() };
    assert_eq!(next(&[lost, bookmark("new", 10)], &[], 50), None);
}
