//! The circuit breaker: a host that can't be reached, or fails several times in a row, gets one request at a time until
//! it answers.

use super::answer::HostState;
use super::lines::LineId;
use postrider_core::backoff::Backoff;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Failures in a row after which a host that can be reached is closed.
const FAILURES_MAX: u32 = 5;

/// Pauses between the attempts to reach a host.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// Hosts that are remembered; those that answer are forgotten first.
const HOSTS_MAX: usize = 2_000;

#[derive(Debug, Default)]
struct Host {
    failures: u32,
    closed: Option<ClosedHost>,
    /// Lines that wait until the host answers.
    waiting: VecDeque<LineId>,
}

#[derive(Debug)]
struct ClosedHost {
    backoff: Backoff,
    /// When the next attempt may begin.
    next_at: Instant,
    /// An attempt is in flight.
    attempt: bool,
}

/// The hosts that requests go to.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    hosts: HashMap<Rc<str>, Host>,
}

impl Hosts {
    /// Whether a request to this host may be sent now. If not, its line waits here.
    pub(super) fn admits(&mut self, host: &Rc<str>, line: LineId, now: Instant) -> bool {
        if self.hosts.len() >= HOSTS_MAX {
            self.hosts.retain(|_, host| {
                let is_tried = host.closed.as_ref().is_some_and(|closed| closed.attempt);
                is_tried || !host.waiting.is_empty()
            });
        }
        let host = self.hosts.entry(Rc::clone(host)).or_default();
        match &mut host.closed {
            None => true,
            Some(closed) if !closed.attempt && closed.next_at <= now => {
                closed.attempt = true;
                true
            }
            Some(_) => {
                host.waiting.push_back(line);
                false
            }
        }
    }

    /// A request to this host has ended. Returns whether the host is closed, with the lines that need not wait for it
    /// any longer.
    pub(super) fn ended(
        &mut self,
        host: &Rc<str>,
        state: HostState,
        (now, random): (Instant, f64),
    ) -> (bool, Vec<LineId>) {
        let host = self.hosts.entry(Rc::clone(host)).or_default();
        if state == HostState::Answers {
            (host.failures, host.closed) = (0, None);
            return (false, host.waiting.drain(..).collect());
        }
        host.failures = host.failures.saturating_add(1);
        if state == HostState::Fails && host.failures < FAILURES_MAX && host.closed.is_none() {
            return (false, Vec::new());
        }
        let closed = host.closed.get_or_insert_with(|| ClosedHost {
            backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX),
            next_at: now,
            attempt: false,
        });
        // Requests that were in flight when it was closed do not make the pause longer.
        if closed.attempt || closed.backoff.attempts() == 0 {
            closed.next_at = now + closed.backoff.next(random);
            closed.attempt = false;
        }
        (true, Vec::new())
    }

    /// An attempt has ended that says nothing about the host.
    pub(super) fn not_tried(&mut self, host: &Rc<str>, (now, random): (Instant, f64)) {
        let closed = self.hosts.get_mut(host).and_then(|host| host.closed.as_mut());
        if let Some(closed) = closed.filter(|closed| closed.attempt) {
            closed.next_at = now + closed.backoff.next(random);
            closed.attempt = false;
        }
    }

    /// Whether a host is closed.
    pub(super) fn any_closed(&self) -> bool {
        self.hosts.values().any(|host| host.closed.is_some())
    }

    /// A waiting line of each host that may be tried again.
    pub(super) fn wake(&mut self, now: Instant) -> Vec<LineId> {
        let due = |host: &mut Host| {
            let closed = host.closed.as_ref()?;
            if closed.attempt || closed.next_at > now { None } else { host.waiting.pop_front() }
        };
        self.hosts.values_mut().filter_map(due).collect()
    }

    /// When the next host may be tried again for a waiting line.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let due = |host: &Host| {
            let closed = host.closed.as_ref().filter(|closed| !closed.attempt)?;
            (!host.waiting.is_empty()).then_some(closed.next_at)
        };
        self.hosts.values().filter_map(due).min()
    }

    /// All lines are given up.
    pub(super) fn reset(&mut self) {
        for host in self.hosts.values_mut() {
            host.waiting.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::lines::AggregateLines;

    fn line() -> LineId {
        use crate::http::config::tests::spec;
        use crate::http::event::WebhookEvent;
        use crate::record_batch::RecordBatch;
        use postrider_core::record::{Record, Ticket};
        let record = Record {
            topic: "t",
            partition: None,
            key: None,
            value: None,
            timestamp_ms: None,
            headers: &[],
        };
        let mut batch = RecordBatch::default();
        batch.push(Ticket(1), &record);
        let mut lines = AggregateLines::default();
        let target = spec("").target("t").unwrap();
        lines.push((&Rc::from("t"), &target), None, WebhookEvent::of(&spec(""), &batch.get(0)));
        lines.next_ready().unwrap()
    }

    #[test]
    fn host_that_can_not_be_reached_gets_one_request_at_a_time() {
        let (mut hosts, host, now, line) =
            (Hosts::default(), Rc::<str>::from("http://a"), Instant::now(), line());
        assert!(hosts.admits(&host, line, now) && hosts.admits(&host, line, now));
        assert!(hosts.ended(&host, HostState::Unreachable, (now, 1.0)).0);
        let pause = hosts.hosts[&host].closed.as_ref().unwrap().next_at;
        assert!(hosts.ended(&host, HostState::Unreachable, (now, 1.0)).0);
        assert_eq!(hosts.hosts[&host].closed.as_ref().unwrap().next_at, pause, "same outage");
        assert!(!hosts.admits(&host, line, now) && !hosts.admits(&host, line, now));
        assert_eq!(hosts.next_due(), Some(now + PAUSE_MIN));
        let later = now + PAUSE_MIN;
        assert_eq!(hosts.wake(now), []);
        assert_eq!(hosts.wake(later), [line]);
        assert!(hosts.admits(&host, line, later), "the attempt");
        assert!(!hosts.admits(&host, line, later) && hosts.next_due().is_none());
        assert!(hosts.ended(&host, HostState::Fails, (later, 1.0)).0);
        assert_eq!(hosts.next_due(), Some(later + 2 * PAUSE_MIN));
        assert!(hosts.any_closed());
        let (closed, lines) = hosts.ended(&host, HostState::Answers, (later, 1.0));
        assert_eq!((closed, lines.len(), hosts.any_closed()), (false, 2, false));
    }

    #[test]
    fn host_that_fails_is_closed_after_several_failures_in_a_row() {
        let (mut hosts, host, now) =
            (Hosts::default(), Rc::<str>::from("http://a"), Instant::now());
        for _ in 0..3 {
            for _ in 1..FAILURES_MAX {
                assert!(!hosts.ended(&host, HostState::Fails, (now, 1.0)).0);
            }
            assert!(!hosts.ended(&host, HostState::Answers, (now, 1.0)).0);
        }
        for _ in 1..FAILURES_MAX {
            assert!(!hosts.ended(&host, HostState::Fails, (now, 1.0)).0);
        }
        assert!(hosts.ended(&host, HostState::Fails, (now, 1.0)).0);
    }
}
