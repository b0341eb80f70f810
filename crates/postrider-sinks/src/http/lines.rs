//! The order of requests: a line for each aggregate, of which one request is in flight.
//!
//! No I/O and no clock: the worker passes both in.

use super::event::WebhookEvent;
use super::target::Target;
use bytes::{BufMut as _, Bytes, BytesMut};
use postrider_core::backoff::Backoff;
use postrider_core::record::Ticket;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Pauses between the attempts of a request.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Separates topic and key: no UTF-8 text has it.
const SEPARATOR: u8 = 0xff;

/// A line, by its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LineId(usize);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LineState {
    /// In `ready`, or with the host that it waits for.
    Ready,
    /// A request is in flight. `old`: of an earlier generation.
    Busy { old: bool },
    /// Its request is sent again later. The number tells entries of `delayed` that are out of date.
    Delayed(u64),
}

pub(super) struct AggregateLine {
    key: Box<[u8]>,
    pub(super) topic: Rc<str>,
    pub(super) target: Target,
    events: VecDeque<WebhookEvent>,
    /// Events of the request that is in flight, or that is sent again.
    sent: usize,
    state: LineState,
    backoff: Backoff,
}

/// All lines that have events.
#[derive(Default)]
pub(super) struct AggregateLines {
    by_key: HashMap<Box<[u8]>, LineId>,
    lines: Vec<Option<AggregateLine>>,
    free: Vec<LineId>,
    ready: VecDeque<LineId>,
    delayed: BinaryHeap<Reverse<(Instant, u64, LineId)>>,
    stamp: u64,
}

/// What a request has.
pub(super) struct Front {
    pub(super) id: String,
    pub(super) body: Bytes,
    pub(super) events: usize,
}

impl AggregateLines {
    /// Adds an event behind those of its line. Without a key the line is that of the topic.
    pub(super) fn push(
        &mut self,
        (topic, target): (&Rc<str>, &Target),
        key: Option<&[u8]>,
        event: WebhookEvent,
    ) {
        let mut name = topic.as_bytes().to_vec();
        if let Some(key) = key {
            name.push(SEPARATOR);
            name.extend_from_slice(key);
        }
        if let Some(line) =
            self.by_key.get(name.as_slice()).copied().and_then(|id| self.get_mut(id))
        {
            line.events.push_back(event);
            return;
        }
        let key: Box<[u8]> = name.into();
        let line = AggregateLine {
            key: key.clone(),
            topic: Rc::clone(topic),
            target: target.clone(),
            events: VecDeque::from([event]),
            sent: 0,
            state: LineState::Ready,
            backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX),
        };
        let id = self.free.pop().unwrap_or_else(|| {
            self.lines.push(None);
            LineId(self.lines.len() - 1)
        });
        if let Some(place) = self.lines.get_mut(id.0) {
            *place = Some(line);
        }
        self.by_key.insert(key, id);
        self.ready.push_back(id);
    }

    pub(super) fn get(&self, id: LineId) -> Option<&AggregateLine> {
        self.lines.get(id.0)?.as_ref()
    }

    fn get_mut(&mut self, id: LineId) -> Option<&mut AggregateLine> {
        self.lines.get_mut(id.0)?.as_mut()
    }

    /// The next line whose request may be sent. The caller sends it, or gives it to the host that it waits for.
    pub(super) fn next_ready(&mut self) -> Option<LineId> {
        self.ready.pop_front()
    }

    /// Lines that have waited for their host.
    pub(super) fn return_ready(&mut self, lines: impl IntoIterator<Item = LineId>) {
        self.ready.extend(lines);
    }

    /// The request at the front of a line, which is in flight from now on: as it was sent before, or of up to `batch`
    /// events and some `bytes`.
    pub(super) fn begin(&mut self, id: LineId, batch: usize, bytes: usize) -> Option<Front> {
        let line = self.get_mut(id)?;
        if line.sent == 0 {
            line.sent = front_len(&line.events, batch, bytes);
        }
        line.state = LineState::Busy { old: false };
        let first = line.events.front()?;
        let (id, events) = (first.id().to_owned(), line.sent);
        if batch == 1 {
            return Some(Front { id, body: first.body(), events });
        }
        let mut body = BytesMut::new();
        for (event, number) in line.events.iter().take(events).zip(0..) {
            body.put_u8(if number == 0 { b'[' } else { b',' });
            body.extend_from_slice(&event.body());
        }
        body.put_u8(b']');
        Some(Front { id: format!("{id}:{events}"), body: body.freeze(), events })
    }

    /// The event at the front.
    pub(super) fn first(&self, id: LineId) -> Option<&WebhookEvent> {
        self.get(id)?.events.front()
    }

    /// Whether the request of a line belongs to an earlier generation.
    pub(super) fn is_old(&self, id: LineId) -> bool {
        self.get(id).is_some_and(|line| line.state == LineState::Busy { old: true })
    }

    /// The request of a line is done with: its events, each with whether it is a retry. The line goes on.
    pub(super) fn finish(&mut self, id: LineId) -> Vec<(Ticket, bool)> {
        let Some(line) = self.get_mut(id) else { return Vec::new() };
        let done = line.events.drain(..line.sent.min(line.events.len()));
        let done = done.map(|event| (event.ticket, event.again)).collect();
        line.sent = 0;
        line.backoff.reset();
        if line.events.is_empty() {
            self.remove(id);
        } else {
            line.state = LineState::Ready;
            self.ready.push_back(id);
        }
        done
    }

    fn remove(&mut self, id: LineId) {
        if let Some(line) = self.lines.get_mut(id.0).and_then(Option::take) {
            self.by_key.remove(&line.key);
            self.free.push(id);
        }
    }

    /// The request of a line is sent again after a pause: the one that was asked for, or a longer one with each
    /// attempt. Returns the number of attempts.
    pub(super) fn again(
        &mut self,
        id: LineId,
        now: Instant,
        after: Option<Duration>,
        random: f64,
    ) -> u32 {
        self.stamp += 1;
        let stamp = self.stamp;
        let Some(line) = self.get_mut(id) else { return 0 };
        let own = line.backoff.next(random);
        // A receiver may ask for no pause at all.
        let at = now + after.map_or(own, |after| after.max(PAUSE_MIN));
        line.state = LineState::Delayed(stamp);
        let attempts = line.backoff.attempts();
        self.delayed.push(Reverse((at, stamp, id)));
        attempts
    }

    /// Lines whose pause is over are ready.
    pub(super) fn wake(&mut self, now: Instant) {
        while let Some(Reverse((at, stamp, id))) = self.delayed.peek().copied() {
            let is_current = self.is_delayed(id, stamp);
            if is_current && at > now {
                return;
            }
            self.delayed.pop();
            if is_current && let Some(line) = self.get_mut(id) {
                line.state = LineState::Ready;
                self.ready.push_back(id);
            }
        }
    }

    fn is_delayed(&self, id: LineId, stamp: u64) -> bool {
        self.get(id).is_some_and(|line| line.state == LineState::Delayed(stamp))
    }

    /// When the next pause is over.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.delayed.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Gives up all events but those of requests in flight, and returns their number. The next generation's events of
    /// such a line wait until its request is answered, or given up by the time-out.
    pub(super) fn reset(&mut self) -> usize {
        let mut given_up = 0;
        for at in 0..self.lines.len() {
            let id = LineId(at);
            let Some(line) = self.get_mut(id) else { continue };
            let kept = if matches!(line.state, LineState::Busy { .. }) { line.sent } else { 0 };
            given_up += line.events.len() - kept;
            line.events.truncate(kept);
            line.state = LineState::Busy { old: true };
            if kept == 0 {
                self.remove(id);
            }
        }
        self.ready.clear();
        self.delayed.clear();
        given_up
    }
}

/// Events of the next request. A retry of a parked event is sent alone, because only it is meant by a refusal then.
fn front_len(events: &VecDeque<WebhookEvent>, batch: usize, bytes_max: usize) -> usize {
    let (mut count, mut bytes) = (0, 0);
    for event in events.iter().take(batch) {
        bytes += event.body().len() + 1;
        if count > 0 && (event.again || bytes > bytes_max) {
            break;
        }
        count += 1;
        if event.again {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::config::tests::spec;
    use crate::record_batch::RecordBatch;
    use postrider_core::record::{Header, Record};

    fn event(batch: &str, ticket: u64, again: bool) -> WebhookEvent {
        let headers = [Header { name: "position", value: Some(b"1") }];
        let record = Record {
            topic: "t",
            partition: None,
            key: None,
            value: Some(b"1"),
            timestamp_ms: None,
            headers: &headers,
        };
        let mut records = RecordBatch::default();
        records.push(Ticket(ticket), &record);
        if again {
            records.mark_retry();
        }
        WebhookEvent::of(&spec(batch), &records.get(0))
    }

    fn push(lines: &mut AggregateLines, key: &str, ticket: u64) {
        let target = spec("").target("t").unwrap();
        lines.push((&Rc::from("t"), &target), Some(key.as_bytes()), event("", ticket, false));
    }

    fn tickets(done: Vec<(Ticket, bool)>) -> Vec<u64> {
        done.into_iter().map(|(ticket, _)| ticket.0).collect()
    }

    #[test]
    fn one_request_of_a_line_is_in_flight_and_lines_do_not_wait_for_each_other() {
        let mut lines = AggregateLines::default();
        for (key, ticket) in [("a", 1), ("a", 2), ("b", 3), ("a", 4)] {
            push(&mut lines, key, ticket);
        }
        let (a, b) = (lines.next_ready().unwrap(), lines.next_ready().unwrap());
        assert!(lines.next_ready().is_none());
        lines.begin(a, 1, 0).unwrap();
        lines.begin(b, 1, 0).unwrap();
        push(&mut lines, "b", 5);
        assert!(lines.next_ready().is_none());
        assert_eq!(tickets(lines.finish(b)), [3]);
        assert_eq!(lines.next_ready(), Some(b));
        let now = Instant::now();
        assert_eq!(lines.again(a, now, Some(Duration::from_mins(1)), 0.5), 1);
        lines.wake(now);
        assert!(lines.next_ready().is_none());
        assert_eq!(lines.next_due(), Some(now + Duration::from_mins(1)));
        lines.begin(b, 1, 0).unwrap();
        assert_eq!(tickets(lines.finish(b)), [5]);
        lines.wake(now + Duration::from_mins(1));
        assert_eq!(lines.next_ready(), Some(a));
        lines.begin(a, 1, 0).unwrap();
        assert_eq!(tickets(lines.finish(a)), [1]);
        assert_eq!(
            tickets({
                lines.begin(a, 1, 0).unwrap();
                lines.finish(a)
            }),
            [2]
        );
    }

    #[test]
    fn after_a_reset_a_line_waits_for_its_request_of_the_generation_before() {
        let mut lines = AggregateLines::default();
        for (key, ticket) in [("a", 1), ("a", 2), ("b", 3), ("c", 4)] {
            push(&mut lines, key, ticket);
        }
        let (a, _b, c) =
            (lines.next_ready().unwrap(), lines.next_ready().unwrap(), lines.next_ready().unwrap());
        lines.begin(a, 1, 0).unwrap();
        lines.begin(c, 1, 0).unwrap();
        lines.again(c, Instant::now(), None, 0.5);
        assert_eq!(lines.reset(), 3, "2, 3 and 4");
        push(&mut lines, "a", 11);
        push(&mut lines, "b", 13);
        let b = lines.next_ready().unwrap();
        assert!(lines.next_ready().is_none() && lines.next_due().is_none());
        lines.begin(b, 1, 0).unwrap();
        assert!(lines.is_old(a) && !lines.is_old(b));
        assert_eq!(tickets(lines.finish(a)), [1]);
        assert_eq!(lines.next_ready(), Some(a));
        lines.begin(a, 1, 0).unwrap();
        assert_eq!(tickets(lines.finish(a)), [11]);
        assert_eq!(tickets(lines.finish(b)), [13]);
        assert_eq!(lines.by_key.len(), 0);
        assert_eq!(lines.reset(), 0);
    }

    #[test]
    fn batch_is_sent_again_as_it_was_and_a_retry_is_alone() {
        const BATCH: &str = "batch = 3\n";
        let mut lines = AggregateLines::default();
        let target = spec("").target("t").unwrap();
        let add = |lines: &mut AggregateLines, ticket, again| {
            lines.push((&Rc::from("t"), &target), None, event(BATCH, ticket, again));
        };
        add(&mut lines, 1, false);
        add(&mut lines, 2, false);
        let line = lines.next_ready().unwrap();
        let first = lines.begin(line, 3, 1_000).unwrap();
        assert_eq!((first.events, first.id.as_str()), (2, "shop:p:1:2"));
        add(&mut lines, 3, false);
        add(&mut lines, 4, true);
        let now = Instant::now();
        lines.again(line, now, Some(Duration::ZERO), 0.0);
        assert_eq!(lines.next_ready(), None, "a pause in any case");
        lines.wake(now + PAUSE_MIN);
        assert_eq!(lines.next_ready(), Some(line));
        let again = lines.begin(line, 3, 1_000).unwrap();
        assert_eq!((again.events, again.body), (2, first.body));
        assert_eq!(tickets(lines.finish(line)), [1, 2]);
        assert_eq!(lines.begin(line, 3, 1_000).unwrap().events, 1, "the retry does not join");
        lines.finish(line);
        assert_eq!(lines.begin(line, 3, 1_000).unwrap().events, 1);
        assert_eq!(lines.finish(line), [(Ticket(4), true)]);
        add(&mut lines, 5, false);
        add(&mut lines, 6, false);
        let line = lines.by_key.values().next().copied().unwrap();
        assert_eq!(lines.begin(line, 3, 1).unwrap().events, 1, "at least one, whatever its size");
    }
}
