//! Whether what was handed over waits for company, or is sent at once.
//!
//! A request costs a broker and ourselves as much as dozens of records. So while others are in flight a record waits
//! for more of its partition, up to the producer's linger; one that comes to an idle producer has nothing to wait for.
//! Decides for the sink's thread; knows no producer.

use super::properties;
use std::time::Instant;

/// What was handed over since the driver last had nothing more.
pub(super) struct Company {
    /// The linger is ours.
    hurries: bool,
    handed: bool,
    /// Nothing else was in flight, or an answer to it is waited for.
    alone: bool,
    /// When something was last handed over.
    before: Option<Instant>,
}

impl Company {
    /// `hurries`: see [`properties::hurries`].
    pub(super) const fn new(hurries: bool) -> Self {
        Self { hurries, handed: false, alone: false, before: None }
    }

    /// A record is about to be handed over; `idle` tells whether any is in flight.
    #[inline]
    pub(super) fn handed(&mut self, idle: impl FnOnce() -> bool) {
        if !self.handed {
            self.handed = true;
            self.alone |= self.hurries && idle();
        }
    }

    /// What follows waits for the answer to what was handed over.
    pub(super) fn awaited(&mut self) {
        self.alone = true;
    }

    /// Whether what was handed over since the last call is to be sent at once.
    pub(super) fn is_none(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if !std::mem::take(&mut self.handed) || !self.hurries {
            return false;
        }
        let now = now();
        let before = self.before.replace(now);
        let paused = before.is_none_or(|before| now - before >= properties::LINGER);
        std::mem::take(&mut self.alone) || paused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Three records, of which the first finds the producer idle or not, at some microsecond.
    fn turn(company: &mut Company, start: Instant, idle: bool, micros: u64) -> bool {
        company.handed(|| idle);
        company.handed(|| false);
        company.handed(|| false);
        company.is_none(|| start + Duration::from_micros(micros))
    }

    #[test]
    fn what_comes_to_an_idle_producer_is_sent_at_once_and_what_follows_soon_waits() {
        let (mut company, start) = (Company::new(true), Instant::now());
        assert!(turn(&mut company, start, true, 0));
        assert!(!turn(&mut company, start, false, 400), "there is company");
        assert!(!turn(&mut company, start, false, 800));
        assert!(turn(&mut company, start, true, 1_200), "all before it is answered");
        assert!(!company.is_none(|| start), "nothing was handed over");
    }

    #[test]
    fn a_pause_as_long_as_the_linger_ends_the_wait_though_answers_take_longer() {
        let (mut company, start) = (Company::new(true), Instant::now());
        assert!(turn(&mut company, start, true, 0));
        assert!(turn(&mut company, start, false, 1_000));
        assert!(!turn(&mut company, start, false, 1_500));
    }

    #[test]
    fn a_record_that_others_wait_for_does_not_wait() {
        let (mut company, start) = (Company::new(true), Instant::now());
        assert!(turn(&mut company, start, true, 0));
        company.awaited();
        assert!(turn(&mut company, start, false, 400));
        assert!(!turn(&mut company, start, false, 800));
    }

    #[test]
    fn an_operators_linger_is_kept() {
        let mut company = Company::new(false);
        assert!(!turn(&mut company, Instant::now(), true, 0));
    }
}
