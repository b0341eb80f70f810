//! Whether anything is acknowledged, and when producers are given up that are acknowledged nothing.
//!
//! Decides for the keeper, by the counts and the time that it is given. Knows no broker, and not why.

use std::time::{Duration, Instant};

/// How long records may be in flight without any acknowledgement before that is told.
pub(super) const STALL: Duration = Duration::from_secs(5);

/// How long brokers may answer and acknowledge nothing before the producers are taken for what is at fault: librdkafka
/// may have lost its way to a leader, as a program that is started again has not. Longer than a copy that hangs counts
/// as in sync (`replica.lag.time.max.ms`, 30 s, and half as much). Twice as long after each that did not help.
const GIVE_UP: Duration = Duration::from_mins(1);
/// The longest such time, since what is in flight comes twice after it; and where the topics themselves explain it.
const GIVE_UP_MAX: Duration = Duration::from_mins(10);

/// What is acknowledged to a set of producers, and what is not.
pub(super) struct Stall {
    acked: u64,
    /// When something was acknowledged last, or nothing was in flight.
    moved_at: Instant,
    /// Since when nothing is in flight.
    idle_since: Option<Instant>,
    /// How long brokers have answered since then, and when the last answer was, if none was missing since.
    answered: Duration,
    answered_at: Option<Instant>,
    /// Since then topics lacked leaders, or copies, or were not there.
    explained: bool,
    patience: Duration,
}

impl Stall {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            acked: 0,
            moved_at: now,
            idle_since: None,
            answered: Duration::ZERO,
            answered_at: None,
            explained: false,
            patience: GIVE_UP,
        }
    }

    /// Other producers are looked at from here on.
    pub(super) const fn new_producers(&mut self, now: Instant) {
        self.idle_since = None;
        self.moves(now);
    }

    const fn moves(&mut self, now: Instant) {
        self.moved_at = now;
        self.answered = Duration::ZERO;
        self.answered_at = None;
        self.explained = false;
    }

    /// So much was acknowledged by now, and something is `flying`. Whether a stall that was told is over.
    pub(super) fn look(&mut self, acked: u64, flying: bool, now: Instant) -> bool {
        let moved = acked != self.acked;
        self.acked = acked;
        if moved {
            self.patience = GIVE_UP;
        }
        // What flies now may have begun to since the look before.
        let idle_since = self.idle_since.take();
        if moved || !flying || idle_since.is_some() {
            self.moves(now);
        }
        if flying {
            return moved;
        }
        let idle_since = *self.idle_since.insert(idle_since.unwrap_or(now));
        // New producers have nothing in flight at first, and that is no end of a trouble that they were made for. But
        // who polls claims nothing while there is trouble.
        moved || self.patience == GIVE_UP || now - idle_since >= STALL
    }

    /// Whether that is to be told.
    pub(super) fn is_told(&self, now: Instant) -> bool {
        now - self.moved_at >= STALL
    }

    /// No broker answers: the time until one does not count.
    pub(super) const fn no_answer(&mut self) {
        self.answered_at = None;
    }

    /// A broker answered though nothing moves: whether the producers are to be given up. `explained`: their topics lack
    /// leaders, or copies, or are not there. Once that is known it holds until something moves: not each answer has it.
    pub(super) fn is_hopeless(&mut self, explained: bool, now: Instant) -> bool {
        self.answered += self.answered_at.map_or(Duration::ZERO, |at| now - at);
        self.answered_at = Some(now);
        self.explained |= explained;
        let patience = if self.explained { GIVE_UP_MAX } else { self.patience };
        if self.answered < patience {
            return false;
        }
        self.patience = (2 * self.patience).min(GIVE_UP_MAX);
        self.answered = Duration::ZERO;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Looks every second; when it was given up, in seconds.
    fn given_up(stall: &mut Stall, from: Instant, seconds: u32, explained: bool) -> Vec<u32> {
        (0..seconds)
            .filter(|second| {
                let now = from + *second * SECOND;
                stall.look(7, true, now);
                stall.is_hopeless(explained, now)
            })
            .collect()
    }

    #[test]
    fn the_time_of_an_outage_does_not_count() {
        let start = Instant::now();
        let mut stall = Stall::new(start);
        stall.look(7, true, start);
        let back = start + Duration::from_hours(1);
        assert!(stall.is_told(back));
        stall.no_answer();
        assert!(!stall.is_hopeless(false, back));
        assert!(!stall.is_hopeless(false, back + 59 * SECOND));
        stall.no_answer();
        assert!(!stall.is_hopeless(false, back + 120 * SECOND));
        assert!(stall.is_hopeless(false, back + 121 * SECOND));
    }

    #[test]
    fn each_time_without_help_is_followed_by_one_twice_as_long() {
        let mut stall = Stall::new(Instant::now());
        let given_up = given_up(&mut stall, Instant::now(), 3_000, false);
        assert_eq!(given_up, [60, 180, 420, 900, 1500, 2100, 2700]);
    }

    #[test]
    fn what_the_topics_explain_is_waited_for() {
        let mut stall = Stall::new(Instant::now());
        let now = Instant::now();
        stall.look(7, true, now);
        assert!(!stall.is_hopeless(true, now));
        assert_eq!(given_up(&mut stall, now, 1_300, false), [600, 1200]);
    }

    #[test]
    fn what_has_just_begun_to_fly_is_no_stall() {
        let start = Instant::now();
        let mut stall = Stall::new(start);
        stall.look(0, false, start);
        let later = start + 2 * STALL;
        stall.look(0, true, later);
        assert!(!stall.is_told(later));
        stall.look(0, true, later + STALL);
        assert!(stall.is_told(later + STALL));
    }

    /// Who polls claims nothing while a stall is told: without an acknowledgement it would never be over.
    #[test]
    fn a_stall_is_over_when_nothing_is_in_flight_for_a_while() {
        let start = Instant::now();
        let mut stall = Stall::new(start);
        stall.look(7, true, start);
        assert!(stall.look(7, false, start), "nothing was given up");
        stall.look(7, true, start);
        assert_eq!(given_up(&mut stall, start, 61, false), [60]);
        stall.new_producers(start);
        assert!(!stall.look(7, false, start));
        assert!(!stall.look(7, false, start + 4 * SECOND));
        assert!(stall.look(7, false, start + STALL));
        assert!(!stall.look(7, true, start + STALL));
        assert!(stall.look(8, true, start + STALL), "something was acknowledged");
    }
}
