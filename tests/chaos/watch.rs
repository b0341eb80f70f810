//! Checks status updates: no relay may confirm to PostgreSQL a position below which an event is neither in Kafka nor
//! parked.
//!
//! PostgreSQL skips a transaction if its commit record begins before the confirmed position. So at the time of each
//! update, every event of every such transaction must have been appended to its topic (by the broker's clock, as an
//! independent consumer reads it), or its parked row must have been committed.

use crate::proxy::tap::{Kind, Seen};
use crate::truth::Truth;
use std::collections::HashMap;

/// Findings that are listed at most.
const FINDINGS_MAX: usize = 20;

/// The result for one connection.
#[derive(Default, Debug)]
pub(crate) struct Verdict {
    /// Status updates that were checked.
    pub(crate) claims: usize,
    pub(crate) sessions: usize,
    /// What was wrong.
    pub(crate) broken: Vec<String>,
}

/// Checks the status updates of one relay. `appended` has the first time each event was appended, in milliseconds since
/// the Unix epoch, like the times of the truth.
pub(crate) fn check_updates(
    seen: &[Seen],
    truth: &Truth,
    appended: &HashMap<String, i64>,
) -> Verdict {
    let mut verdict = Verdict { claims: seen.len(), ..Verdict::default() };
    let resolved = resolved(truth, appended);
    let mut flushed: HashMap<u32, u64> = HashMap::new();
    for claim in seen {
        let Seen { session, lsn, received, .. } = *claim;
        let before = flushed.insert(session, lsn).unwrap_or(0);
        if lsn < before {
            verdict.broken.push(format!("{} after {}: goes back", claim_text(claim), hex(before)));
        }
        if lsn > received {
            let text =
                format!("{}: the server has sent {} at most", claim_text(claim), hex(received));
            verdict.broken.push(text);
        }
        // The transactions that the server skips from now on are a prefix of all.
        let passed = resolved.partition_point(|(commit_lsn, _, _)| *commit_lsn < lsn);
        let Some((_, at, latest)) = passed.checked_sub(1).map(|last| &resolved[last]) else {
            continue;
        };
        if *at > claim.at {
            let late = match *at {
                i64::MAX => "never was".to_owned(),
                at => format!("was {} ms later", at - claim.at),
            };
            let text =
                format!("{}: event {latest} was not resolved, and {late}", claim_text(claim));
            verdict.broken.push(text);
        }
    }
    verdict.sessions = flushed.len();
    verdict.broken.truncate(FINDINGS_MAX);
    verdict
}

/// For each transaction: its position, when it and all before it were resolved, and which event was the last one.
fn resolved(truth: &Truth, appended: &HashMap<String, i64>) -> Vec<(u64, i64, String)> {
    let mut latest = (i64::MIN, String::new());
    let transactions = truth.transactions.values();
    let times = transactions.map(|transaction| {
        for event in &transaction.events {
            let times = [appended.get(event), truth.parked.get(event)];
            let at = times.into_iter().flatten().min().copied().unwrap_or(i64::MAX);
            if at > latest.0 {
                latest = (at, event.clone());
            }
        }
        (transaction.commit_lsn, latest.0, latest.1.clone())
    });
    times.collect()
}

fn hex(lsn: u64) -> String {
    format!("{:X}/{:X}", lsn >> 32, lsn & 0xffff_ffff)
}

fn claim_text(claim: &Seen) -> String {
    let kind = match claim.kind {
        Kind::Start => "start at",
        Kind::Flush => "flush of",
    };
    format!("session {}, {kind} {} at {}", claim.session, hex(claim.lsn), claim.at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::truth::Transaction;

    /// Two transactions, at 100 (events a, b) and 200 (c; parked at 70).
    fn checked(claims: &[(u32, i64, u64)], appended: &[(&str, i64)]) -> Vec<String> {
        let mut truth = Truth::default();
        for (commit_lsn, events) in [(100, ["a", "b"].as_slice()), (200, &["c"])] {
            let events = events.iter().map(|event| (*event).to_owned()).collect();
            truth.transactions.insert(commit_lsn, Transaction { commit_lsn, events });
        }
        truth.parked.insert("c".to_owned(), 70);
        let claims = claims.iter().map(|&(session, at, lsn)| Seen {
            kind: Kind::Flush,
            session,
            at,
            lsn,
            received: 300,
        });
        let appended = appended.iter().map(|&(event, at)| (event.to_owned(), at)).collect();
        check_updates(&claims.collect::<Vec<_>>(), &truth, &appended).broken
    }

    #[test]
    fn claims_behind_what_is_resolved_pass() {
        let appended = [("a", 50), ("b", 60)];
        // The first transaction's own commit record may be confirmed: the transaction is sent again.
        assert_eq!(checked(&[(1, 10, 100), (1, 60, 200), (1, 70, 300)], &appended), [""; 0]);
    }

    #[test]
    fn claims_before_their_time_are_found() {
        let appended = [("a", 50), ("b", 60)];
        let early = checked(&[(1, 59, 101)], &appended);
        assert!(early[0].contains("event b was not resolved, and was 1 ms later"), "{early:?}");
        assert_eq!(checked(&[(1, 69, 201)], &appended).len(), 1, "parked a moment later");
        let never = checked(&[(1, 99, 101)], &[("a", 50)]);
        assert!(never[0].contains("event b was not resolved, and never was"), "{never:?}");
    }

    #[test]
    fn claims_that_go_back_or_beyond_what_was_sent_are_found() {
        let back = checked(&[(1, 10, 100), (2, 20, 90), (1, 30, 99)], &[("a", 5), ("b", 5)]);
        assert!(back.len() == 1 && back[0].contains("goes back"), "{back:?}");
        let beyond = checked(&[(1, 80, 301)], &[("a", 5), ("b", 5)]);
        assert!(beyond.len() == 1 && beyond[0].contains("has sent 0/12C at most"), "{beyond:?}");
    }
}
