//! Rules about failover: whether the standbys that are there would have the slot, and whether they hold the stream up.

use super::Scene;
use crate::names::literal;
use postrider_core::finding::Finding;

pub(super) fn rules(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let before = out.len();
    stalled(scene, out);
    let physical: Vec<&str> =
        scene.slots.iter().filter(|s| !s.logical && s.active).map(|s| s.name.as_str()).collect();
    if scene.sessions.standbys.is_empty() && physical.is_empty() {
        return;
    }
    if scene.server.version < 170_000 {
        out.push(
            Finding::info("failover", "there are standbys, and PostgreSQL before 17 carries no slot over to them").why(
                "after a failover the slot is missing (PR002), unless Patroni (permanent slots), pg_failover_slots or \
                 the storage carries it over",
            ),
        );
        return;
    }
    if scene.ask.failover {
        carried_over(scene, &physical, out);
        if out.len() == before {
            out.push(Finding::ok(
                "failover",
                "standbys carry the slot over, as far as it is seen from here",
            ));
        }
    }
}

/// Names in `synchronized_standby_slots` that nobody answers to hold all decoding up.
fn stalled(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let names: Vec<String> = listed(scene);
    let is_active =
        |name: &String| scene.slots.iter().any(|s| s.name == *name && !s.logical && s.active);
    let (active, absent): (Vec<String>, Vec<String>) = names.into_iter().partition(is_active);
    if absent.is_empty() {
        return;
    }
    out.push(
        Finding::error(
            "synchronized_standby_slots",
            format!("synchronized_standby_slots names {}, which no standby is using", absent.join(", ")),
        )
        .why("the stream of a failover slot waits for these standbys, for ever: nothing is published")
        .sql(format!("ALTER SYSTEM SET synchronized_standby_slots = {};", literal(&active.join(", "))))
        .sql("SELECT pg_reload_conf();"),
    );
}

/// The names in `synchronized_standby_slots`.
fn listed(scene: &Scene<'_>) -> Vec<String> {
    let list = scene.setting("synchronized_standby_slots");
    let names = list.split(',').map(|name| name.trim().trim_matches('"').to_owned());
    names.filter(|name| !name.is_empty()).collect()
}

fn carried_over(scene: &Scene<'_>, physical: &[&str], out: &mut Vec<Finding>) {
    if listed(scene).is_empty() && !physical.is_empty() {
        out.push(
            Finding::warning(
                "synchronized_standby_slots",
                format!(
                    "events are published before the standbys of {} have them",
                    physical.join(", ")
                ),
            )
            .why("after a failover consumers can have events that the database has not")
            .sql(format!(
                "ALTER SYSTEM SET synchronized_standby_slots = {};",
                literal(&physical.join(", "))
            ))
            .sql("SELECT pg_reload_conf();"),
        );
    }
    let silent: Vec<&str> = scene
        .slots
        .iter()
        .filter(|slot| !slot.logical && slot.active && !slot.feedback)
        .map(|slot| slot.name.as_str())
        .collect();
    if !silent.is_empty() {
        out.push(
            Finding::warning(
                "hot_standby_feedback",
                format!("the standby of {} sends no feedback", silent.join(", ")),
            )
            .why("on that standby: without it the slot that is carried over is invalidated by vacuum")
            .sql("ALTER SYSTEM SET hot_standby_feedback = on;")
            .sql("SELECT pg_reload_conf();"),
        );
    }
    if scene.setting("sync_replication_slots") != "on" {
        out.push(
            Finding::info("sync_replication_slots", "sync_replication_slots is off on this server")
                .why(
                    "every standby needs it on, with primary_slot_name and a dbname in primary_conninfo, to carry the \
                     slot over; this server too, for when it is a standby",
                )
                .sql("ALTER SYSTEM SET sync_replication_slots = on;")
                .sql("SELECT pg_reload_conf();"),
        );
    }
}
