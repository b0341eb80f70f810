//! `postrider inbox create` and `postrider inbox drop`.

use super::args::{CreateInboxArgs, DropInboxArgs, InboxOrderArg};
use super::error::{InboxCommandError, InboxStatement};
use super::look::{counted, facts_json};
use super::session::{InboxSession, failed};
use crate::cli::Output;
use crate::cli::dialog::{agreed, print};
use crate::cli::error::{CliError, Exit, printable};
use crate::health::grouped;
use crate::postgres::store::inboxes::{
    self, DropScope, Dropped, InboxFacts, InboxOrigin, InboxRule, NewInbox, OpenMessages,
};
use serde_json::json;

/// The SQLSTATE of an inbox that exists already.
const EXISTS: &str = "PR122";

/// The SQLSTATEs of a function, schema or table that does not exist.
const MISSING: [&str; 3] = ["42883", "3F000", "42P01"];

fn new_inbox(args: &CreateInboxArgs) -> Result<NewInbox, CliError> {
    if args.rule.first_sequence.is_some() && args.rule.order != Some(InboxOrderArg::Sequence) {
        return Err(InboxCommandError::FirstSequence.into());
    }
    let rule = match (args.rule.order, &args.rule.priorities) {
        (Some(by), _) => {
            Some(InboxRule::Order { by: by.order(), first_sequence: args.rule.first_sequence })
        }
        (None, Some(tiers)) => Some(InboxRule::Priorities {
            tiers: tiers.clone(),
            default: args.rule.default_priority,
        }),
        (None, None) => None,
    };
    Ok(NewInbox {
        name: args.name.clone(),
        origin: origin(args),
        max_retries: args.max_retries,
        retention_hours: args.retention,
        rule,
        if_not_exists: args.if_not_exists,
    })
}

fn origin(args: &CreateInboxArgs) -> InboxOrigin {
    match &args.adopt.adopt {
        None => InboxOrigin::Created { schema: args.schema.clone() },
        Some(table) => {
            let of = &args.adopt;
            let named = [
                ("p_id_column", &of.id_column),
                ("p_processed_at_column", &of.processed_at_column),
                ("p_retry_count_column", &of.retry_count_column),
                ("p_error_column", &of.error_column),
                ("p_received_at_column", &of.received_at_column),
                ("p_event_type_column", &of.event_type_column),
            ];
            let column = |(argument, column): (&'static str, &Option<String>)| {
                let column = column.clone()?;
                let lacks = argument == "p_event_type_column" && column.is_empty();
                Some((argument, (!lacks).then_some(column)))
            };
            InboxOrigin::Adopted {
                table: table.clone(),
                columns: named.into_iter().filter_map(column).collect(),
            }
        }
    }
}

/// Prints the statements.
pub(super) fn print_sql(args: &CreateInboxArgs) -> Result<Exit, CliError> {
    Output::stdout().line(&new_inbox(args)?.sql()).map_err(CliError::Output)?;
    Ok(Exit::Done)
}

pub(super) async fn create(
    session: &InboxSession,
    args: &CreateInboxArgs,
) -> Result<Exit, CliError> {
    let new = new_inbox(args)?;
    if args.if_not_exists
        && let Some(inbox) = session.look_for(&args.name).await?
    {
        return exists(&inbox, &new, args.json);
    }
    if let Err(error) = inboxes::create(session.client(), &new).await {
        session.client().batch_execute("ROLLBACK").await.unwrap_or_default();
        let state = error.sqlstate();
        let state = state.as_ref().map_or("", |state| state.as_str());
        // Without the toolkit, reading the list of inboxes says so. An inbox may have been created since.
        if MISSING.contains(&state) || (state == EXISTS && args.if_not_exists) {
            let found = session.look_for(&args.name).await?;
            if let Some(inbox) = found.filter(|_| state == EXISTS) {
                return exists(&inbox, &new, args.json);
            }
        }
        return Err(InboxCommandError::of(error, InboxStatement::Create, None).into());
    }
    let inbox = session.find(&args.name).await?;
    let what = if inbox.is_managed { "created" } else { "adopted" };
    let text = format!(
        "{what} inbox {}: table {}",
        printable(&inbox.name),
        printable(&inbox.table.name.to_string())
    );
    let mut value = facts_json(&inbox);
    value["created"] = json!(true);
    print(args.json, &value, &text)
}

/// An inbox that is left as it is.
fn exists(inbox: &InboxFacts, new: &NewInbox, as_json: bool) -> Result<Exit, CliError> {
    let differs = differences(inbox, new);
    let mut text = format!("inbox {} exists, and is left as it is", printable(&inbox.name));
    if !differs.is_empty() {
        text.push_str("; it differs: ");
        text.push_str(&differs.join("; "));
    }
    let mut value = facts_json(inbox);
    value["created"] = json!(false);
    value["differs"] = json!(differs);
    print(as_json, &value, &text)?;
    Ok(if differs.is_empty() { Exit::Done } else { Exit::Problems })
}

/// In what an inbox differs from what was asked for.
fn differences(inbox: &InboxFacts, new: &NewInbox) -> Vec<String> {
    let mut differs = Vec::new();
    let mut note = |what: &str, has: String, wanted: Option<String>| {
        if let Some(wanted) = wanted.filter(|wanted| *wanted != has) {
            differs.push(format!("{what} is {has}, not {wanted}"));
        }
    };
    let kind = |managed: bool| if managed { "managed" } else { "adopted" }.to_owned();
    let managed = matches!(new.origin, InboxOrigin::Created { .. });
    note("it", kind(inbox.is_managed), Some(kind(managed)));
    if let InboxOrigin::Created { schema } = &new.origin {
        note("its schema", printable(&inbox.table.name.schema), schema.clone());
    }
    let number = |number: Option<u32>| number.map(|number| number.to_string());
    note("max_retries", inbox.max_retries.to_string(), number(new.max_retries));
    note("retention_hours", inbox.retention_hours.to_string(), number(new.retention_hours));
    let (has_order, has_first) = (inbox.order, inbox.first_sequence);
    let order = has_order.map_or("none", |order| order.name()).to_owned();
    match &new.rule {
        Some(InboxRule::Order { by, first_sequence }) => {
            note("its order", order, Some(by.name().to_owned()));
            let first = first_sequence.filter(|_| has_order == Some(*by));
            note("first_sequence", has_first.to_string(), first.map(|first| first.to_string()));
        }
        Some(InboxRule::Priorities { tiers, .. }) => {
            let has = inbox.tiers.as_deref().map(serde_json::from_str::<serde_json::Value>);
            let has = has.and_then(Result::ok).unwrap_or_default();
            let wanted: serde_json::Map<_, _> =
                tiers.iter().map(|(name, low, high)| (name.clone(), json!([low, high]))).collect();
            note("its priorities", has.to_string(), Some(json!(wanted).to_string()));
        }
        None => {}
    }
    differs
}

pub(super) async fn drop(session: &InboxSession, args: &DropInboxArgs) -> Result<Exit, CliError> {
    let inbox = session.find(&args.name).await?;
    let failed = failed(InboxStatement::Drop, &inbox);
    let is_there = inbox.table.id_type.is_some();
    let (name, table) = (printable(&inbox.name), printable(&inbox.table.name.to_string()));
    let mut open = OpenMessages::default();
    let (effect, keeps) = if !is_there {
        (format!("the table {table} of inbox {name} does not exist any more"), false)
    } else if !inbox.is_managed {
        let text = format!("inbox {name} is a table of yours: {table} stays with its messages");
        (text, true)
    } else if args.keep_table {
        let text = format!(
            "the table {table} of inbox {name} stays with its messages, without its triggers: no worker is given one"
        );
        (text, true)
    } else {
        open = inboxes::open_messages(session.client(), &inbox).await.map_err(failed)?;
        let text = format!(
            "inbox {name} has {} pending and {} dead messages, which are lost with its table {table}; processed ones \
             are not recognised as repeated any more",
            grouped(open.pending),
            grouped(open.dead)
        );
        (text, false)
    };
    let needs_yes = || InboxCommandError::NeedsYes { command: "drop" }.into();
    if !agreed(&effect, "drop this inbox?", args.yes, needs_yes)? {
        return Ok(Exit::Done);
    }
    let scope = match (is_there, keeps) {
        (false, _) => DropScope::TableIsGone,
        (true, true) => DropScope::KeepTable,
        (true, false) => DropScope::WithTable((!args.yes).then_some(open)),
    };
    let lost = match inboxes::drop(session.client(), &inbox, scope).await.map_err(failed)? {
        Dropped::Done(lost) => lost,
        Dropped::Grown(OpenMessages { pending, dead }) => {
            return Err(InboxCommandError::Grown { pending, dead }.into());
        }
    };
    let value = json!({
        "inbox": inbox.name, "dropped": true, "table_dropped": is_there && !keeps,
        "pending_lost": lost.pending, "dead_lost": lost.dead,
    });
    let text = if is_there && !keeps {
        format!(
            "dropped inbox {name} with {} pending and {}",
            grouped(lost.pending),
            counted(lost.dead, "dead message")
        )
    } else {
        format!("dropped inbox {name}")
    };
    print(args.json, &value, &text)
}
