//! The fake broker and its client against the crate's own sink and a real broker.

mod fake;
mod real;

use postrider::record::Outcome;
use std::collections::{BTreeMap, BTreeSet};

/// Partitions of the topic.
const PARTITIONS: usize = 3;

/// Draws of the fake that are looked at.
const SEEDS: u64 = 4_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Small,
    /// It does not fit, and the sink knows.
    TooLarge,
    /// Its batch is refused by the broker, once the topic takes less ([`Step::Narrow`]).
    Guilty,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The next event, to a partition.
    Send(usize, Kind),
    /// As many are reported, or the producer is broken.
    Reported(usize),
    /// The producer is broken.
    Broken,
    /// The topic takes less, and nobody tells the sink.
    Narrow,
}

/// What was seen of a script. At its end the producer is thrown away, and a new one writes a marker to each partition.
#[derive(Default, Debug)]
struct Seen {
    /// The events of each partition, in the order in which they were sent.
    sent: BTreeMap<usize, Vec<u32>>,
    outcomes: BTreeMap<u32, Outcome>,
    broken: bool,
    /// What is in each partition, before the marker.
    log: BTreeMap<usize, Vec<u32>>,
    /// What came behind the marker.
    late: Vec<u32>,
}

impl Seen {
    /// Event by event.
    fn exactly(&self) -> Vec<String> {
        let mut lines = vec![format!("the producer is broken: {}", self.broken)];
        for (partition, sent) in &self.sent {
            let outcome = |event: &u32| format!("{event} {}", outcome(self.outcomes.get(event)));
            lines.extend(sent.iter().map(outcome));
            lines.push(format!("partition {partition}: {:?}", self.of(*partition)));
        }
        lines.push(format!("behind the marker: {:?}", self.late));
        lines
    }

    /// How much of each partition, a line each: whether it is a beginning.
    fn beginnings(&self) -> BTreeSet<String> {
        let missing = |event: &u32| !self.log.values().flatten().any(|written| written == event);
        let acked = self.outcomes.iter().filter(|(_, outcome)| **outcome == Outcome::Acked);
        let lost: Vec<_> = acked.map(|(event, _)| event).filter(|event| missing(event)).collect();
        let mut lines = BTreeSet::from([
            format!("acknowledged and missing: {lost:?}"),
            format!("behind the marker: {:?}", self.late),
        ]);
        for (partition, sent) in &self.sent {
            let written = self.of(*partition);
            lines.insert(match written.len() {
                0 => "none of a partition".to_owned(),
                all if all == sent.len() && written == sent => "all of a partition".to_owned(),
                _ if sent.starts_with(written) => "a beginning of a partition".to_owned(),
                _ => format!("of {sent:?}: {written:?}"),
            });
        }
        lines
    }

    fn of(&self, partition: usize) -> &[u32] {
        self.log.get(&partition).map_or(&[], Vec::as_slice)
    }
}

fn outcome(outcome: Option<&Outcome>) -> &'static str {
    match outcome {
        None => "is not reported",
        Some(Outcome::Acked) => "is acknowledged",
        Some(Outcome::Rejected { reason, .. }) if reason.excess().is_some() => {
            "is refused before it is sent"
        }
        Some(Outcome::Rejected { .. }) => "is refused by the broker",
        Some(Outcome::Unknown) => "is in doubt",
    }
}

fn round_robin(count: usize) -> Vec<Step> {
    (0..count).map(|number| Step::Send(number % PARTITIONS, Kind::Small)).collect()
}

#[tokio::test]
async fn records_of_a_partition_are_written_in_the_order_they_were_taken() {
    let mut script = round_robin(600);
    script.push(Step::Reported(600));
    let fakes: BTreeSet<_> = (0..50).map(|seed| fake::run(&script, seed).exactly()).collect();
    assert_eq!(fakes.len(), 1, "the fake has no choice");
    let seen = real::run(&script).await.exactly();
    assert!(fakes.contains(&seen), "{seen:#?}");
}

#[tokio::test]
async fn what_does_not_fit_is_refused_before_it_is_sent() {
    let script = [
        Step::Send(0, Kind::Small),
        Step::Send(0, Kind::TooLarge),
        Step::Send(0, Kind::Small),
        Step::Reported(3),
    ];
    let expected = [
        "the producer is broken: false",
        "0 is acknowledged",
        "1 is refused before it is sent",
        "2 is acknowledged",
        "partition 0: [0, 2]",
        "behind the marker: []",
    ];
    for seed in 0..50 {
        assert_eq!(fake::run(&script, seed).exactly(), expected, "the fake, seed {seed}");
    }
    assert_eq!(real::run(&script).await.exactly(), expected);
}

/// The fake draws where batches end, what of the batches behind is written, and what is reported before it is thrown
/// away; the real one does one of these things. Its client fills a batch, so the innocents fail with the guilty one.
#[tokio::test]
async fn refusal_by_the_broker_names_a_batch_and_nothing_behind_it_is_acknowledged_out_of_order() {
    // Both partitions know the producer from here on: a stranger would get one record, and the others would wait.
    let mut script = [0, 0, 1].map(|partition| Step::Send(partition, Kind::Small)).to_vec();
    script.extend([Step::Reported(3), Step::Narrow]);
    let kinds = [Kind::Small, Kind::Small, Kind::Guilty, Kind::Small, Kind::Small];
    script.extend(kinds.map(|kind| Step::Send(0, kind)));
    script.extend([Step::Send(1, Kind::Small), Step::Send(1, Kind::Small), Step::Broken]);
    let fakes: BTreeSet<_> = (0..SEEDS).map(|seed| fake::run(&script, seed).exactly()).collect();
    let seen = real::run(&script).await.exactly();
    assert!(fakes.contains(&seen), "none of {} of the fake: {seen:#?}", fakes.len());
    assert!(seen.contains(&"the producer is broken: true".to_owned()), "{seen:#?}");
    for innocent in ["3", "4", "6", "7"] {
        let line = format!("{innocent} is refused by the broker");
        assert!(seen.contains(&line), "{line}: {seen:#?}");
    }
}

/// The fake draws how much. A real one is thrown away at once, after the first reports, and near the end.
#[tokio::test]
async fn of_what_was_on_its_way_at_a_reset_a_beginning_may_be_there_and_never_a_gap() {
    let mut possible = BTreeSet::new();
    for reported in [0, 30, 290] {
        let mut script = round_robin(300);
        script.push(Step::Reported(reported));
        let fakes = (0..SEEDS / 40).flat_map(|seed| fake::run(&script, seed).beginnings());
        possible.extend(fakes);
    }
    assert!(possible.contains("a beginning of a partition"), "{possible:#?}");
    for reported in [0, 1, 30, 290] {
        let mut script = round_robin(300);
        script.push(Step::Reported(reported));
        let seen = real::run(&script).await.beginnings();
        println!("thrown away after {reported} reports: {seen:?}");
        let other: Vec<_> = seen.difference(&possible).collect();
        assert!(other.is_empty(), "not what the fake does: {other:#?}");
    }
}
