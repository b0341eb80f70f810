//! Reduces a failing plan to fewer faults, transactions and changes, while it still fails in the same way.

use super::plan::{Bad, CoordinatorRules, Plan, PlannedChange, SinkRules};
use super::world::run;

/// Number of orders of turns that are tried for each smaller plan.
const SCHEDULES: u64 = 12;

/// The failure without positions and numbers.
fn kind(failure: &str) -> String {
    let words = failure.split(|c: char| c.is_whitespace());
    let plain = words.filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    plain.collect::<Vec<_>>().join(" ")
}

/// Returns a smaller plan that still fails in the same way.
pub(super) fn shrink(plan: &Plan) -> Plan {
    let Some(failure) = run(plan, false).failure else { return plan.clone() };
    let kind_of = kind(&failure);
    let mut best = plan.clone();
    let mut smaller = true;
    while smaller {
        smaller = false;
        for candidate in candidates(&best) {
            if size(&candidate) < size(&best)
                && let Some(found) = still_fails(&candidate, &kind_of)
            {
                (best, smaller) = (found, true);
                break;
            }
        }
    }
    best
}

fn still_fails(candidate: &Plan, kind_of: &str) -> Option<Plan> {
    (0..SCHEDULES).find_map(|n| {
        let schedule = if n == 0 { candidate.schedule } else { n };
        let plan = Plan { schedule, ..candidate.clone() };
        let failure = run(&plan, false).failure?;
        (kind(&failure) == kind_of).then_some(plan)
    })
}

/// How much a reader of the plan has to read.
fn size(plan: &Plan) -> u64 {
    let k = &plan.knobs;
    let changes: usize = plan.transactions.iter().map(|t| 2 + t.changes.len()).sum();
    let special = |change: &&PlannedChange| match change {
        PlannedChange::Event { bad, delay, expires, .. } => {
            *bad != Bad::No || *delay > 0 || *expires > 0
        }
        PlannedChange::Other => false,
    };
    let bad = plan.transactions.iter().flat_map(|t| &t.changes).filter(special);
    let hidden = plan.transactions.iter().filter(|t| t.hidden > 0 || t.savepoint).count();
    let rules = plan.table.iter().map(|rules| {
        [rules.row_locked > 0, rules.relock_lost > 0, rules.ghosts > 0, rules.keeps_failures]
            .into_iter()
            .chain([rules.delays || rules.commit_times])
            .filter(|on| *on)
            .count()
    });
    let rules: usize = rules.sum();
    let knobs = [k.sink_full, k.destination_down, k.unknown, k.refused_wider, k.report_lost];
    let sink = plan.sink.map_or([0; 7], |rules| {
        let SinkRules { refused, answer_lost, late, coordinator } = rules;
        let CoordinatorRules { call_lost, hidden, sent_twice, time_out, on: _ } = coordinator;
        [refused, answer_lost, late, call_lost, hidden, sent_twice, time_out]
    });
    let knobs = knobs
        .iter()
        .chain([&k.overtakes, &k.keepalive])
        .chain(&sink)
        .filter(|knob| **knob > 0)
        .count();
    (changes + bad.count() + hidden + rules + plan.faults.len() * 2 + knobs + k.processes * 3)
        as u64
}

fn candidates(plan: &Plan) -> Vec<Plan> {
    let mut all = Vec::new();
    let mut add = |change: &dyn Fn(&mut Plan)| {
        let mut smaller = plan.clone();
        change(&mut smaller);
        all.push(smaller);
    };
    let knobs: [fn(&mut Plan); 20] = [
        |p| p.knobs.processes = 1,
        |p| p.knobs.sink_full = 0,
        |p| p.knobs.destination_down = 0,
        |p| p.knobs.unknown = 0,
        |p| p.knobs.refused_wider = 0,
        |p| p.knobs.report_lost = 0,
        |p| p.knobs.overtakes = 0,
        |p| p.knobs.keepalive = 0,
        |p| p.each_sink_rule(|rules| rules.refused = 0),
        |p| p.each_sink_rule(|rules| rules.answer_lost = 0),
        |p| p.each_sink_rule(|rules| rules.late = 0),
        |p| p.each_sink_rule(|rules| rules.coordinator.call_lost = 0),
        |p| p.each_sink_rule(|rules| rules.coordinator.hidden = 0),
        |p| p.each_sink_rule(|rules| rules.coordinator.sent_twice = 0),
        |p| p.each_sink_rule(|rules| rules.coordinator.time_out = 0),
        |p| p.each_rule(|rules| rules.row_locked = 0),
        |p| p.each_rule(|rules| rules.relock_lost = 0),
        |p| p.each_rule(|rules| rules.ghosts = 0),
        |p| p.each_rule(|rules| rules.keeps_failures = false),
        |p| p.each_rule(|rules| (rules.delays, rules.commit_times) = (false, false)),
    ];
    for knob in &knobs {
        add(knob);
    }
    for parts in [2, 4, 8, 16, usize::MAX] {
        let step = |len: usize| (len / parts).max(1);
        for at in (0..plan.faults.len()).step_by(step(plan.faults.len())) {
            let upto = (at + step(plan.faults.len())).min(plan.faults.len());
            add(&|p| drop(p.faults.drain(at..upto)));
        }
        for at in (0..plan.transactions.len()).step_by(step(plan.transactions.len())) {
            let upto = (at + step(plan.transactions.len())).min(plan.transactions.len());
            add(&|p| drop(p.transactions.drain(at..upto)));
        }
    }
    for (t, transaction) in plan.transactions.iter().enumerate() {
        add(&|p| {
            let transaction = &mut p.transactions[t];
            (transaction.hidden, transaction.savepoint) = (0, false);
        });
        for c in 0..transaction.changes.len() {
            add(&|p| {
                p.transactions[t].changes.remove(c);
            });
            add(&|p| {
                if let PlannedChange::Event { bad, delay, expires, .. } =
                    &mut p.transactions[t].changes[c]
                {
                    (*bad, *delay, *expires) = (Bad::No, 0, 0);
                }
            });
        }
    }
    all
}
