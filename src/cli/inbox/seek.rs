//! `postrider inbox seek`: lets an intake continue at another offset of a partition.

use super::args::{SeekInboxArgs, SeekOffset};
use super::error::InboxCommandError;
use super::run::chosen;
use crate::cli::dialog::{agreed, print};
use crate::cli::error::{CliError, Exit, printable};
use crate::config::Config;
use crate::health::grouped;
use crate::inbox::batch::Partition;
use crate::inbox::kafka::{KafkaSourceConfig, PartitionBounds, bounds, leader_epoch};
use crate::inbox::store::{InboxStore, StoredOffset};
use crate::intake::IntakeSource;
use serde_json::json;

/// Runs the command.
pub(crate) async fn run(config: &Config, args: &SeekInboxArgs) -> Result<Exit, CliError> {
    let spec = chosen(config, std::slice::from_ref(&args.name))?.remove(0);
    let IntakeSource::Kafka(config) = &spec.source else {
        return Err(InboxCommandError::NoPartitions { intake: spec.name }.into());
    };
    let partition = Partition { topic: args.topic.clone(), number: args.partition };
    let mut store = InboxStore::connect(&spec.inbox, "postrider inbox seek").await?;
    let (cluster, there) = ask(config, &partition).await?;
    store.set_cluster(&cluster);
    let stored = store.offsets(std::slice::from_ref(&partition)).await?.remove(&partition);
    let Some(stored) = stored else {
        let (topic, number) = (printable(&args.topic), args.partition);
        return Err(InboxCommandError::NoOffset { topic, partition: number }.into());
    };
    if stored.topic_id.is_some() && there.topic_id.is_none() {
        // Without it the offset would be taken for one of whatever topic has the name.
        let brokers = config.brokers.clone();
        let error = "they did not say the id of the topic".to_owned();
        return Err(InboxCommandError::Broker { brokers, error }.into());
    }
    let to = match args.to {
        SeekOffset::Earliest => there.low,
        SeekOffset::Latest => there.high,
        SeekOffset::At(at) if (there.low..=there.high).contains(&at) => at,
        SeekOffset::At(at) => {
            let (low, high) = (there.low, there.high);
            return Err(InboxCommandError::OutOfRange { at, low, high }.into());
        }
    };
    let is_truncated = is_truncated(config, &partition, &stored, &there).await?;
    let effect = Effect::of(&stored, &there, is_truncated, to);
    let needs_yes = || InboxCommandError::NeedsYes { command: "seek" }.into();
    if !agreed(&effect.text(), "Continue there?", args.yes, needs_yes)? {
        return Ok(Exit::Done);
    }
    let new = StoredOffset { next: to, leader_epoch: None, topic_id: there.topic_id };
    if !store.seek(&partition, stored.next, &new).await? {
        return Err(InboxCommandError::OffsetMoved.into());
    }
    let value = json!({
        "intake": args.name,
        "topic": args.topic,
        "partition": args.partition,
        "from": stored.next,
        "to": to,
        "not_stored": effect.not_stored,
        "read_again": effect.read_again,
        "gone": effect.gone,
        "maybe_replaced": effect.maybe_replaced,
    });
    print(args.json, &value, &format!("the intake continues at offset {to}"))
}

/// Asks the brokers of an intake for the id of their cluster and the bounds of a partition. The client waits, so
/// another thread asks.
async fn ask(
    config: &KafkaSourceConfig,
    partition: &Partition,
) -> Result<(String, PartitionBounds), CliError> {
    let (asking, of, brokers) = (config.clone(), partition.clone(), config.brokers.clone());
    let asked = tokio::task::spawn_blocking(move || bounds(&asking, &of)).await;
    let error = match asked {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => error,
        Err(error) => error.to_string(),
    };
    Err(InboxCommandError::Broker { brokers, error }.into())
}

/// Whether the log was truncated: it ends before the stored offset, or the record before that is of another epoch than
/// the one that was stored. The record is read, by another thread.
async fn is_truncated(
    config: &KafkaSourceConfig,
    partition: &Partition,
    stored: &StoredOffset,
    there: &PartitionBounds,
) -> Result<bool, CliError> {
    let last = stored.next - 1;
    let Some(epoch) = stored.leader_epoch.filter(|_| (there.low..there.high).contains(&last))
    else {
        return Ok(stored.next > there.high);
    };
    let (asking, of, brokers) = (config.clone(), partition.clone(), config.brokers.clone());
    let asked = tokio::task::spawn_blocking(move || leader_epoch(&asking, &of, last)).await;
    let error = match asked {
        Ok(Ok(now)) => return Ok(now.is_some_and(|now| now != epoch)),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    Err(InboxCommandError::Broker { brokers, error }.into())
}

/// What the change means for records. The numbers are upper bounds, for offsets count the markers of transactions and
/// what compaction has removed too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Effect {
    /// The topic is another one than that of the stored offset.
    is_other_topic: bool,
    from: i64,
    to: i64,
    /// Records that are there, were not stored, and will not be.
    not_stored: u64,
    /// Records that are read again.
    read_again: u64,
    /// Records that were deleted before they were stored; `None` if they are of a topic that is gone.
    gone: Option<u64>,
    /// Records that are passed over, and that may be other ones than those that were stored at their offsets: the log
    /// was truncated.
    maybe_replaced: u64,
}

impl Effect {
    fn of(stored: &StoredOffset, there: &PartitionBounds, is_truncated: bool, to: i64) -> Self {
        let PartitionBounds { low, high, .. } = *there;
        let known = (&stored.topic_id, &there.topic_id);
        let is_other_topic = matches!(known, (Some(stored), Some(now)) if stored != now);
        // Of a new topic nothing is stored.
        let from = if is_other_topic { low } else { stored.next };
        let number = |count: i64| u64::try_from(count).unwrap_or(0);
        let count = |from: i64, to: i64| number(to.min(high) - from.max(low));
        let is_truncated = is_truncated && !is_other_topic;
        Self {
            is_other_topic,
            from: stored.next,
            to,
            not_stored: count(from, to),
            read_again: count(to, from),
            gone: (!is_other_topic).then(|| number(low - from)),
            maybe_replaced: if is_truncated { number(to.min(stored.next) - low) } else { 0 },
        }
    }

    fn text(&self) -> String {
        let Self { from, to, .. } = self;
        let mut parts = Vec::new();
        if self.is_other_topic {
            parts.push(
                "the topic was created again since, and its records are other ones; records of the former topic that \
                 were not stored are gone"
                    .to_owned(),
            );
        }
        if let Some(gone @ 1..) = self.gone {
            let gone = grouped(gone);
            parts.push(format!("up to {gone} records were deleted before they were stored"));
        }
        if self.maybe_replaced > 0 {
            let (replaced, end) = (grouped(self.maybe_replaced), from.min(to));
            parts.push(format!(
                "the log was truncated: up to {replaced} records before offset {end} may be other ones than those that \
                 were stored, and will never be stored; see \"Which offset\" in docs/sql/inbox-run.md"
            ));
        }
        if self.not_stored > 0 {
            let not_stored = grouped(self.not_stored);
            parts.push(format!(
                "up to {not_stored} records that were not stored will never be stored"
            ));
        }
        if self.read_again > 0 {
            let read_again = grouped(self.read_again);
            parts.push(format!(
                "up to {read_again} records are read again. Those whose message is in the inbox, or whose id is still \
                 remembered, are not stored again; the others are"
            ));
        }
        if parts.is_empty() {
            parts.push("no record is passed over or read again".to_owned());
        }
        format!("from offset {from} to offset {to}: {}", parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(stored: i64, (low, high): (i64, i64), to: i64) -> Effect {
        let id = Some("id".to_owned());
        let stored = StoredOffset { next: stored, leader_epoch: None, topic_id: id.clone() };
        let there = PartitionBounds { low, high, topic_id: id };
        Effect::of(&stored, &there, stored.next > high, to)
    }

    #[test]
    fn the_effect_counts_what_is_passed_over_and_what_is_read_again() {
        let counts = |effect: Effect| (effect.not_stored, effect.read_again);
        assert_eq!(counts(effect(5, (0, 20), 12)), (7, 0));
        assert_eq!(counts(effect(12, (0, 20), 5)), (0, 7));
        assert_eq!(counts(effect(9, (0, 20), 9)), (0, 0));
        assert_eq!(effect(9, (0, 20), 9).gone, Some(0));
        assert!(
            effect(5, (0, 20), 12).text().contains("7 records that were not stored will never")
        );
    }

    #[test]
    fn the_effect_counts_what_was_deleted_before_it_was_stored() {
        let passed = effect(5, (12, 20), 12);
        assert_eq!((passed.gone, passed.not_stored, passed.read_again), (Some(7), 0, 0));
        let text = passed.text();
        assert!(text.contains("up to 7 records were deleted before they were stored"), "{text}");
        let further = effect(5, (12, 20), 15);
        assert_eq!((further.gone, further.not_stored), (Some(7), 3));
    }

    /// Stored up to 100, a replica that had 80 became the leader, and ten records were written since.
    #[test]
    fn the_effect_counts_records_of_a_truncated_log_that_may_never_have_been_stored() {
        let latest = effect(100, (20, 90), 90);
        assert_eq!((latest.maybe_replaced, latest.not_stored, latest.read_again), (70, 0, 0));
        let text = latest.text();
        assert!(text.contains("up to 70 records before offset 90 may be other ones"), "{text}");
        let back = effect(100, (20, 90), 80);
        assert_eq!((back.maybe_replaced, back.read_again), (60, 10));
        assert_eq!(effect(90, (20, 90), 90).maybe_replaced, 0);
    }

    #[test]
    fn of_a_topic_that_was_created_again_nothing_is_stored() {
        let id = |text: &str| Some(text.to_owned());
        let stored = StoredOffset { next: 5, leader_epoch: None, topic_id: id("a") };
        let there = PartitionBounds { low: 0, high: 10, topic_id: id("b") };
        let effect = Effect::of(&stored, &there, false, 0);
        assert_eq!((effect.not_stored, effect.read_again, effect.is_other_topic), (0, 0, true));
        assert_eq!(effect.gone, None, "how many is not known");
        assert!(effect.text().contains("of the former topic that were not stored are gone"));
        assert_eq!(Effect::of(&stored, &there, false, 10).not_stored, 10);
    }
}
