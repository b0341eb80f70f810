//! Servers of another timeline: promoted, restored, copied.

use super::{Edit, Facts, at, cursor, slot};
use pg_replication::stream::TimelineSwitch;

fn promote(facts: &mut Facts) {
    facts.server.timeline = 2;
    slot(facts).synced = true;
    switch(facts, 1, "0/5900", "no recovery target specified");
}

/// As [`promote`], on a server version that does not record whether a slot was synchronised.
fn promote_16(facts: &mut Facts) {
    promote(facts);
    facts.server.version = 160_013;
    slot(facts).synced = false;
}

fn switch(facts: &mut Facts, timeline: u32, end: &str, reason: &str) {
    let identity = facts.identity.as_mut().unwrap();
    identity.timeline = facts.server.timeline;
    identity.switches = vec![TimelineSwitch {
        timeline,
        at: crate::wire::to_wire(at(end)),
        reason: reason.to_owned(),
    }];
}

pub(super) const HISTORIES: &[(&str, Edit)] = &[
    ("promoted, a synchronised slot at the cursor", promote),
    ("promoted, a synchronised slot behind the cursor", |f| {
        promote(f);
        slot(f).confirmed_flush_lsn = Some(at("0/4800"));
    }),
    ("promoted, a synchronised slot beyond the cursor's limit, below the switch", |f| {
        promote(f);
        slot(f).confirmed_flush_lsn = Some(at("0/5900"));
    }),
    ("promoted, a synchronised slot beyond the switch", |f| {
        promote(f);
        slot(f).confirmed_flush_lsn = Some(at("0/5901"));
    }),
    ("promoted, the cursor beyond the switch", |f| {
        promote(f);
        slot(f).confirmed_flush_lsn = Some(at("0/4000"));
        switch(f, 1, "0/4FFF", "no recovery target specified");
    }),
    ("promoted, nothing known of the switch", |f| {
        promote(f);
        f.identity.as_mut().unwrap().switches.clear();
    }),
    ("promoted, without the slot", |f| {
        promote(f);
        f.slot = None;
    }),
    ("promoted, the slot not wholly synchronised", |f| {
        promote(f);
        slot(f).synced = false;
        slot(f).temporary = true;
    }),
    ("promoted, the slot invalidated on the standby", |f| {
        promote(f);
        slot(f).invalidation_reason = Some("rows_removed".to_owned());
    }),
    ("promoted twice", |f| {
        promote(f);
        f.server.timeline = 3;
        f.identity.as_mut().unwrap().timeline = 3;
    }),
    ("a timeline that has not the cursor's behind it", |f| {
        promote(f);
        f.server.timeline = 3;
        cursor(f).timeline = 2;
        f.identity.as_mut().unwrap().timeline = 3;
    }),
    ("promoted, the slot made by hand, beyond the cursor", |f| {
        promote(f);
        slot(f).synced = false;
        slot(f).failover = false;
        slot(f).confirmed_flush_lsn = Some(at("0/5100"));
    }),
    ("promoted, the slot carried over by other means", |f| {
        promote(f);
        slot(f).synced = false;
        slot(f).failover = false;
    }),
    ("16, promoted, the slot carried over by other means", promote_16),
    ("16, promoted, the slot beyond the cursor", |f| {
        promote_16(f);
        slot(f).confirmed_flush_lsn = Some(at("0/5100"));
    }),
    ("a restored copy with its own slot", |f| {
        promote(f);
        slot(f).synced = false;
    }),
    ("a backup restored up to a time", |f| {
        promote(f);
        switch(f, 1, "0/5900", "before 2026-03-01 04:00:00+00");
    }),
    ("16, a backup restored up to a restore point", |f| {
        promote_16(f);
        switch(f, 1, "0/5900", "at restore point \"monday\"");
    }),
    ("a restored backup without slots", |f| {
        promote(f);
        f.slot = None;
        switch(f, 1, "0/5900", "before 2026-03-01 04:00:00+00");
    }),
    ("the slot below the point of its creation", |f| {
        slot(f).confirmed_flush_lsn = Some(at("0/0F00"));
    }),
];
