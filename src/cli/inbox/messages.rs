//! What `postrider inbox` does with messages: replay, skip, purge, and giving up missing numbers.
//!
//! Each says before it asks how many messages there are, and what becomes of them. Many messages are changed in
//! transactions of at most [`BATCH`]: an error in between says how many were done.

use super::args::{PurgeArgs, ReplayInboxArgs, SkipGapArgs, SkipInboxArgs};
use super::error::{InboxCommandError, InboxStatement};
use super::look::{counted, gap_text, lacks};
use super::session::{InboxSession, failed};
use crate::cli::Output;
use crate::cli::dialog::{agreed, print};
use crate::cli::error::{CliError, Exit, printable};
use crate::health::grouped;
use crate::postgres::SourceError;
use crate::postgres::store::inbox_messages::{
    self, DeadFilter, GapSkip, MessageState, NamedMessage, Purge, ReplayScope,
};
use crate::postgres::store::inboxes::{self, GapScope, InboxFacts, InboxOrder};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The most messages of a transaction.
const BATCH: u32 = 1000;

/// The most ids or aggregates that a text names.
const NAMED_MAX: usize = 10;

fn needs_yes(command: &'static str) -> impl FnOnce() -> CliError {
    move || InboxCommandError::NeedsYes { command }.into()
}

/// An error after some messages were done.
fn partly(
    error: SourceError,
    statement: InboxStatement,
    inbox: &InboxFacts,
    (done, what): (u64, &'static str),
) -> CliError {
    let source = InboxCommandError::of(error, statement, Some(inbox));
    if done == 0 {
        return source.into();
    }
    let progress = format!("{} {what}", grouped(done));
    let (inbox, source) = (printable(&inbox.name), Box::new(source));
    InboxCommandError::Partly { inbox, progress, source }.into()
}

/// The first of many names.
fn some_of<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = if names.len() > NAMED_MAX { ", …" } else { "" };
    let shown: Vec<String> = names.take(NAMED_MAX).map(printable).collect();
    format!("{}{more}", shown.join(", "))
}

/// The messages that a command names.
struct NamedMessages {
    found: Vec<NamedMessage>,
    /// Ids, as they were given, of which there is no message.
    missing: u64,
}

impl NamedMessages {
    async fn read(
        session: &InboxSession,
        inbox: &InboxFacts,
        ids: &[String],
        statement: InboxStatement,
    ) -> Result<Self, CliError> {
        let wanted: BTreeSet<&String> = ids.iter().collect();
        let found = inbox_messages::named(session.client(), inbox, ids).await;
        let found = found.map_err(failed(statement, inbox))?;
        let missing = (wanted.len() as u64).saturating_sub(found.len() as u64);
        Ok(Self { found, missing })
    }

    fn count(&self, state: MessageState) -> u64 {
        self.found.iter().filter(|message| message.state == state).count() as u64
    }

    fn ids(&self, wanted: impl Fn(MessageState) -> bool) -> Vec<String> {
        let wanted = self.found.iter().filter(|message| wanted(message.state));
        wanted.map(|message| message.id.clone()).collect()
    }

    /// `2 dead, 1 pending; 3 of the ids do not exist`
    fn text(&self) -> String {
        let states = [
            (MessageState::Dead, "dead"),
            (MessageState::Pending, "pending"),
            (MessageState::Leased, "pending with the lease of a worker"),
            (MessageState::Processed, "processed"),
        ];
        let counts = states.map(|(state, name)| (self.count(state), name));
        let counts: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, name)| format!("{} {name}", grouped(*count)))
            .collect();
        let mut text = if counts.is_empty() { "none".to_owned() } else { counts.join(", ") };
        match self.missing {
            0 => {}
            1 => text.push_str("; 1 of the ids does not exist"),
            missing => {
                text.push_str("; ");
                text.push_str(&grouped(missing));
                text.push_str(" of the ids do not exist");
            }
        }
        text
    }
}

pub(super) async fn replay(
    session: &InboxSession,
    args: &ReplayInboxArgs,
) -> Result<Exit, CliError> {
    let inbox = session.find_with_table(&args.name).await?;
    if args.ids.is_empty() {
        return replay_dead(session, &inbox, args).await;
    }
    let chosen = NamedMessages::read(session, &inbox, &args.ids, InboxStatement::Change).await?;
    let processed = chosen.count(MessageState::Processed);
    let mut effect = format!(
        "replay of {} of inbox {}: {}",
        counted(chosen.found.len() as u64, "message"),
        printable(&inbox.name),
        chosen.text()
    );
    if processed > 0 {
        effect.push_str("; the effects of the processed ones happen again");
    }
    if chosen.count(MessageState::Leased) > 0 {
        effect.push_str("; a worker that has a lease is refused when it is done (PR114)");
    }
    if chosen.found.is_empty() {
        Output::stderr().line_or_ignore(&effect);
        return replayed(&inbox, args, 0, chosen.missing);
    }
    if !agreed(&effect, "replay these messages?", args.yes, needs_yes("replay"))? {
        return Ok(Exit::Done);
    }
    let mut done = 0;
    let is_processed = |state| state == MessageState::Processed;
    let parts = [
        (chosen.ids(|state| !is_processed(state)), ReplayScope::NotProcessed),
        (chosen.ids(is_processed), ReplayScope::Any),
    ];
    for (ids, scope) in &parts {
        for batch in ids.chunks(BATCH as usize) {
            done += replay_batch(session, &inbox, batch, *scope, done).await?;
        }
    }
    let left = (chosen.found.len() as u64).saturating_sub(done);
    if left > 0 {
        let text = format!(
            "left as they are, because they changed meanwhile: {}",
            counted(left, "message")
        );
        Output::stderr().line_or_ignore(&text);
    }
    replayed(&inbox, args, done, chosen.missing + left)
}

async fn replay_batch(
    session: &InboxSession,
    inbox: &InboxFacts,
    ids: &[String],
    scope: ReplayScope,
    done: u64,
) -> Result<u64, CliError> {
    let replayed = inbox_messages::replay(session.client(), inbox, ids, scope).await;
    replayed.map_err(|error| {
        partly(error, InboxStatement::Change, inbox, (done, "messages were replayed"))
    })
}

async fn replay_dead(
    session: &InboxSession,
    inbox: &InboxFacts,
    args: &ReplayInboxArgs,
) -> Result<Exit, CliError> {
    let event_type = args.event_type.as_deref();
    if event_type.is_some() && inbox.columns.event_type.is_none() {
        return Err(lacks(inbox, "column of types"));
    }
    let client = session.client();
    let count = inbox_messages::count_dead(client, inbox, event_type).await;
    let count = count.map_err(failed(InboxStatement::Look, inbox))?;
    let of_type = event_type.map(|of| format!(" of type {:?}", printable(of))).unwrap_or_default();
    let effect = format!(
        "inbox {} has {}{of_type}, which become pending again, with all retries",
        printable(&inbox.name),
        counted(count, "dead message")
    );
    if count == 0 {
        Output::stderr().line_or_ignore(&effect);
        return replayed(inbox, args, 0, 0);
    }
    if !agreed(&effect, "replay these messages?", args.yes, needs_yes("replay"))? {
        return Ok(Exit::Done);
    }
    let (mut done, mut after) = (0, None);
    // Each page begins behind the last one: a message that dies again meanwhile is not replayed twice.
    loop {
        let filter = DeadFilter { after: after.as_deref(), event_type };
        let page = inbox_messages::dead(client, inbox, filter, BATCH as usize, false).await;
        let page = page.map_err(|error| {
            partly(error, InboxStatement::Look, inbox, (done, "messages were replayed"))
        })?;
        let ids: Vec<String> = page.into_iter().map(|message| message.id).collect();
        let Some(last) = ids.last() else { break };
        after = Some(last.clone());
        done += replay_batch(session, inbox, &ids, ReplayScope::Dead, done).await?;
    }
    replayed(inbox, args, done, 0)
}

/// The result; `left`: ids that do not exist, or whose message was left as it is.
fn replayed(
    inbox: &InboxFacts,
    args: &ReplayInboxArgs,
    done: u64,
    left: u64,
) -> Result<Exit, CliError> {
    let value = json!({ "inbox": inbox.name, "replayed": done, "not_replayed": left });
    let text = format!("replayed {} of inbox {}", counted(done, "message"), printable(&inbox.name));
    print(args.json, &value, &text)?;
    Ok(if left > 0 { Exit::Problems } else { Exit::Done })
}

/// Refuses a table of others.
fn managed(inbox: &InboxFacts, command: &'static str) -> Result<(), CliError> {
    if inbox.is_managed {
        return Ok(());
    }
    let (name, table) = (printable(&inbox.name), inbox.table.name.to_string());
    Err(InboxCommandError::NotManaged { inbox: name, table, command }.into())
}

pub(super) async fn skip(session: &InboxSession, args: &SkipInboxArgs) -> Result<Exit, CliError> {
    let inbox = session.find_with_table(&args.name).await?;
    managed(&inbox, "skip")?;
    let chosen = NamedMessages::read(session, &inbox, &args.ids, InboxStatement::Skip).await?;
    let ids = chosen.ids(|state| state != MessageState::Processed);
    let effect = format!(
        "skip of {} of inbox {}: {}; those that are not processed count as processed then, and their effects do not \
         happen",
        counted(ids.len() as u64, "message"),
        printable(&inbox.name),
        chosen.text()
    );
    let mut done = 0;
    if ids.is_empty() {
        Output::stderr().line_or_ignore(&effect);
    } else {
        if !agreed(&effect, "skip these messages?", args.yes, needs_yes("skip"))? {
            return Ok(Exit::Done);
        }
        let skipped = inbox_messages::skip(session.client(), &inbox, &ids, &args.reason).await;
        done = skipped.map_err(failed(InboxStatement::Skip, &inbox))?;
    }
    let left = (chosen.found.len() as u64 + chosen.missing).saturating_sub(done);
    let value = json!({ "inbox": inbox.name, "skipped": done, "not_skipped": left });
    let text = format!("skipped {} of inbox {}", counted(done, "message"), printable(&inbox.name));
    print(args.json, &value, &text)?;
    Ok(if left > 0 { Exit::Problems } else { Exit::Done })
}

pub(super) async fn purge(session: &InboxSession, args: &PurgeArgs) -> Result<Exit, CliError> {
    let inbox = session.find_with_table(&args.name).await?;
    let client = session.client();
    let statement = failed(InboxStatement::Purge, &inbox);
    let (purge, kind) = chosen(session, &inbox, args).await?;
    let found = inbox_messages::count_purged(client, &inbox, &purge).await;
    let (count, aggregates) = found.map_err(statement)?;
    let effect = purge_effect(&inbox, kind, count, aggregates);
    if count == 0 {
        Output::stderr().line_or_ignore(&effect);
    } else if !agreed(&effect, "delete these messages?", args.yes, needs_yes("purge"))? {
        return Ok(Exit::Done);
    }
    let deleted = if count > 0 { delete_all(session, &inbox, &purge).await? } else { 0 };
    let (left, _) =
        inbox_messages::count_purged(client, &inbox, &purge).await.map_err(statement)?;
    if left > 0 {
        let text = format!(
            "not deleted, because other transactions use them: {}",
            counted(left, "message")
        );
        Output::stderr().line_or_ignore(&text);
    }
    let absent = absent(args, count);
    let value = json!({
        "inbox": inbox.name, "deleted": deleted, "state": kind, "not_deleted": left + absent,
    });
    let text = format!(
        "deleted {} {kind} message{} of inbox {}",
        grouped(deleted),
        if deleted == 1 { "" } else { "s" },
        printable(&inbox.name)
    );
    print(args.json, &value, &text)?;
    Ok(if left + absent > 0 { Exit::Problems } else { Exit::Done })
}

/// The messages that the arguments mean, and their state.
async fn chosen(
    session: &InboxSession,
    inbox: &InboxFacts,
    args: &PurgeArgs,
) -> Result<(Purge, &'static str), CliError> {
    let ago = match (args.processed_before, args.dead_before) {
        (None, None) => return Ok((Purge::DeadIds(args.dead_ids.clone()), "dead")),
        (None, Some(_)) if !inbox.is_managed => {
            return Err(lacks(inbox, "time at which a message became dead"));
        }
        (Some(ago), _) | (None, Some(ago)) => ago,
    };
    let time = inbox_messages::time_before(session.client(), ago).await;
    let time = time.map_err(failed(InboxStatement::Purge, inbox))?;
    Ok(if args.processed_before.is_some() {
        (Purge::ProcessedBefore(time), "processed")
    } else {
        (Purge::DeadBefore(time), "dead")
    })
}

/// Deletes the messages in transactions of at most [`BATCH`]. Returns how many.
async fn delete_all(
    session: &InboxSession,
    inbox: &InboxFacts,
    purge: &Purge,
) -> Result<u64, CliError> {
    let mut deleted = 0;
    loop {
        let batch = inbox_messages::purge(session.client(), inbox, purge, BATCH).await;
        let batch = batch.map_err(|error| {
            partly(error, InboxStatement::Purge, inbox, (deleted, "messages were deleted"))
        })?;
        deleted += batch;
        if batch < u64::from(BATCH) {
            return Ok(deleted);
        }
    }
}

/// How many of `--dead-ids` are not those of dead messages.
fn absent(args: &PurgeArgs, found: u64) -> u64 {
    let wanted: BTreeSet<&String> = args.dead_ids.iter().collect();
    (wanted.len() as u64).saturating_sub(found)
}

/// What a purge does, for the question.
fn purge_effect(inbox: &InboxFacts, kind: &str, count: u64, aggregates: u64) -> String {
    let mut text = format!(
        "{} {kind} message{} of inbox {} {} deleted: a repetition of a deleted message is new",
        grouped(count),
        if count == 1 { "" } else { "s" },
        printable(&inbox.name),
        if count == 1 { "is" } else { "are" }
    );
    if kind == "dead" {
        text.push_str("; the effects of these messages never happen");
        match inbox.order {
            Some(InboxOrder::Sequence) => {
                text.push_str("; later messages wait then for their numbers, or for postrider inbox skip-gap: ");
                text.push_str(&counted(aggregates, "aggregate"));
            }
            Some(InboxOrder::Arrival) => {
                text.push_str("; the messages behind them are next: ");
                text.push_str(&counted(aggregates, "aggregate"));
            }
            None => {}
        }
    }
    text
}

pub(super) async fn skip_gap(session: &InboxSession, args: &SkipGapArgs) -> Result<Exit, CliError> {
    let inbox = session.find_with_table(&args.name).await?;
    let client = session.client();
    let wanted: BTreeSet<&String> = args.aggregates.iter().collect();
    let scope = GapScope::FirstOf(&args.aggregates);
    let found = inboxes::gaps(client, &inbox.name, scope, wanted.len()).await;
    let (gaps, _) = found.map_err(failed(InboxStatement::Look, &inbox))?;
    let waiting: BTreeSet<&str> = gaps.iter().map(|gap| gap.aggregate.as_str()).collect();
    let others: Vec<&str> =
        wanted.iter().map(|name| name.as_str()).filter(|name| !waiting.contains(name)).collect();
    if !others.is_empty() {
        let text =
            format!("these aggregates wait for no number: {}", some_of(others.iter().copied()));
        Output::stderr().line_or_ignore(&text);
    }
    let mut results: Vec<Value> = Vec::new();
    let mut left = others.len() as u64;
    if !gaps.is_empty() {
        let shown: Vec<String> = gaps.iter().take(NAMED_MAX).map(gap_text).collect();
        let more = if gaps.len() > NAMED_MAX { ", …" } else { "" };
        let effect = format!(
            "{} of inbox {}: {}{more}; they go on without these numbers, and a message that has one of \
             them is processed when it arrives",
            counted(gaps.len() as u64, "waiting aggregate"),
            printable(&inbox.name),
            shown.join(", ")
        );
        if !agreed(&effect, "give these numbers up?", args.yes, needs_yes("skip-gap"))? {
            return Ok(Exit::Done);
        }
    }
    for gap in &gaps {
        let end = inbox_messages::skip_gap(client, &inbox, gap).await.map_err(|error| {
            let done = (results.len() as u64, "aggregates went on");
            partly(error, InboxStatement::Change, &inbox, done)
        })?;
        match end {
            GapSkip::Done(missing) => {
                results.push(json!({ "aggregate": gap.aggregate, "missing": missing }));
            }
            GapSkip::Changed => {
                left += 1;
                let text = format!(
                    "aggregate {} does not wait for {}..{} any more, and is left as it is",
                    printable(&gap.aggregate),
                    gap.from,
                    gap.to
                );
                Output::stderr().line_or_ignore(&text);
            }
        }
    }
    let text = format!(
        "went on without the missing numbers: {} of inbox {}",
        counted(results.len() as u64, "aggregate"),
        printable(&inbox.name)
    );
    let value = json!({ "inbox": inbox.name, "skipped": results, "not_skipped": left });
    print(args.json, &value, &text)?;
    Ok(if left > 0 { Exit::Problems } else { Exit::Done })
}
