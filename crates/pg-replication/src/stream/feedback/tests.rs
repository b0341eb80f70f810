use super::*;

const TIMEOUT: Duration = Duration::from_secs(15);
const CONFIRM: Duration = Duration::from_millis(200);
const SILENCE: Duration = Duration::from_secs(10);

fn lsn(value: u64) -> Lsn {
    Lsn::from_wire(value)
}

struct Clock {
    start: Instant,
    feedback: Feedback,
}

impl Clock {
    fn new() -> Self {
        let start = Instant::now();
        Self { start, feedback: Feedback::new(start, TIMEOUT, CONFIRM, SILENCE) }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    /// The update that is sent at that time, as `write/flush`.
    fn due(&mut self, millis: u64, confirmed: u64, received: u64) -> Option<(u64, u64)> {
        let status = self.feedback.due(self.at(millis), lsn(confirmed), lsn(received))?;
        Some((status.write.to_wire(), status.flush.to_wire()))
    }

    fn request(&mut self, millis: u64, wal_end: u64, confirmed: u64) {
        self.feedback.note_read(self.at(millis));
        self.feedback.reply_requested(self.at(millis), lsn(wal_end), lsn(confirmed));
    }
}

#[test]
fn a_status_update_is_39_bytes_with_apply_as_flush() {
    let status = Status { write: lsn(0x0102), flush: lsn(0x03), reply: true };
    let mut expected = vec![b'd', 0, 0, 0, 38, b'r'];
    expected.extend([0, 0, 0, 0, 0, 0, 1, 2]);
    expected.extend([0, 0, 0, 0, 0, 0, 0, 3].repeat(2));
    expected.extend([0, 0, 0, 0, 0, 0, 0, 9, 1]);
    assert_eq!(status.encode(9).as_slice(), expected);
}

#[test]
fn updates_are_sent_each_second_and_sooner_if_the_watermark_moved() {
    let mut clock = Clock::new();
    assert_eq!(clock.due(150, 5, 9), None, "not yet 200 ms");
    assert_eq!(clock.due(200, 5, 9), Some((9, 5)));
    assert_eq!(clock.due(500, 5, 9), None, "nothing moved");
    assert_eq!(clock.due(1199, 5, 9), None);
    assert_eq!(clock.due(1200, 5, 9), Some((9, 5)), "a second has passed");
    assert_eq!(clock.feedback.wake_at(lsn(5)), clock.at(2200), "nothing to confirm");
    assert_eq!(clock.feedback.wake_at(lsn(6)), clock.at(1400), "something to confirm");
}

/// A thread that finds no update due must not be woken again at once.
#[test]
fn nothing_due_means_a_pause() {
    let mut clock = Clock::new();
    for millis in 1..5_000 {
        let confirmed = 5 + millis / 700;
        if millis == 2_500 {
            clock.request(millis, 90, confirmed);
        }
        if clock.due(millis, confirmed, 90).is_none() {
            let wake_at = clock.feedback.wake_at(lsn(confirmed));
            assert!(wake_at > clock.at(millis), "woken at once at {millis} ms");
        }
    }
}

#[test]
fn a_request_at_a_confirmed_position_is_answered_at_once() {
    let mut clock = Clock::new();
    assert_eq!(clock.due(200, 9, 9), Some((9, 9)));
    clock.request(210, 9, 9);
    assert!(!clock.feedback.draining());
    assert_eq!(clock.due(210, 9, 9), Some((9, 9)));
    assert_eq!(clock.due(211, 9, 9), None);
}

#[test]
fn a_server_that_shuts_down_gets_the_watermark_if_it_comes_in_time() {
    let mut clock = Clock::new();
    assert_eq!(clock.due(1000, 5, 9), Some((9, 5)));
    clock.request(1100, 9, 5);
    assert!(clock.feedback.draining());
    assert_eq!(clock.due(1100, 5, 9), None, "no answer in a loop");
    assert_eq!(clock.due(1500, 9, 9), Some((9, 9)));
    assert!(!clock.feedback.draining());
}

#[test]
fn a_server_that_shuts_down_gets_the_courtesy_reply() {
    let mut clock = Clock::new();
    assert_eq!(clock.due(1000, 5, 9), Some((9, 5)));
    clock.request(1100, 9, 5);
    assert_eq!(clock.due(2000, 5, 9), Some((9, 5)), "the regular update");
    clock.request(2001, 9, 5);
    assert_eq!(clock.feedback.wake_at(lsn(5)), clock.at(2100));
    assert_eq!(clock.due(2099, 5, 9), None);
    assert_eq!(clock.due(2100, 5, 9), Some((9, 0)), "flush 0: the slot does not move");
    // More WAL was written while it shuts down.
    clock.request(2110, 12, 5);
    assert_eq!(clock.due(2110, 5, 12), None);
    assert_eq!(clock.due(2200, 5, 12), Some((12, 0)));
    assert_eq!(clock.due(3200, 5, 12), Some((12, 0)), "the regular update does not revoke it");
    // It did not shut down after all.
    assert_eq!(clock.due(7110, 5, 12), Some((12, 5)));
}

#[test]
fn a_request_after_a_silence_of_the_client_is_no_shutdown() {
    let mut clock = Clock::new();
    clock.request(8000, 9, 5);
    assert!(!clock.feedback.draining());
    assert_eq!(clock.due(8000, 5, 9), Some((9, 5)));
}

#[test]
fn silence_is_answered_with_a_request_and_then_ends_the_stream() {
    let mut clock = Clock::new();
    let reply = |clock: &mut Clock, millis| {
        clock.feedback.due(clock.at(millis), lsn(0), lsn(0)).map(|status| status.reply)
    };
    assert_eq!(reply(&mut clock, 4000), Some(false));
    assert_eq!(reply(&mut clock, 5000), Some(true));
    assert_eq!(clock.feedback.silence(clock.at(9999)), None);
    let dead = Some(SourceErrorKind::Silent(SILENCE));
    assert_eq!(clock.feedback.silence(clock.at(10_000)), dead);
    clock.feedback.note_read(clock.at(10_000));
    assert_eq!(clock.feedback.silence(clock.at(10_000)), None);
}

#[test]
#[should_panic(expected = "the watermark went back to 0/4")]
fn a_watermark_that_goes_back_is_never_sent() {
    let mut clock = Clock::new();
    assert_eq!(clock.due(1000, 5, 9), Some((9, 5)));
    clock.due(2000, 4, 9);
}

#[test]
#[should_panic(expected = "0/A is confirmed, only 0/9 was received")]
fn a_watermark_ahead_of_the_stream_is_never_sent() {
    Clock::new().due(1000, 10, 9);
}
