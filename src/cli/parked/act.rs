//! `retry`, `skip` and `replace`: which events, the request, and what became of it.

use super::args::{ActArgs, FilterArgs, Id, ReplaceArgs, SelectArgs};
use super::{Desk, EVENTS_MAX, filter, print};
use crate::cli::error::CliError;
use crate::cli::exit::Exit;
use crate::cli::output::Output;
use crate::config::Env;
use crate::event::Position;
use crate::outbox::Role;
use crate::parked::{State, Wish};
use crate::postgres::parked::desk::{self, Listed, Request};
use crate::postgres::{server, slot};
use std::io::{IsTerminal as _, Read as _};
use std::path::Path;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the relay is waited for.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Pause between two looks at the rows.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Bytes a new payload may have: as much as the relay takes from the log.
const PAYLOAD_BYTES_MAX: u64 = 64 << 20;

/// The new payload.
pub(super) fn payload(file: &Path) -> Result<Vec<u8>, CliError> {
    let failed = |source| CliError::PayloadFile { file: file.display().to_string(), source };
    let mut payload = Vec::new();
    let read = if file.as_os_str() == "-" {
        std::io::stdin().lock().take(PAYLOAD_BYTES_MAX + 1).read_to_end(&mut payload)
    } else {
        std::fs::File::open(file)
            .and_then(|file| file.take(PAYLOAD_BYTES_MAX + 1).read_to_end(&mut payload))
    };
    let bytes = read.map_err(failed)?;
    if u64::try_from(bytes).is_ok_and(|bytes| bytes > PAYLOAD_BYTES_MAX) {
        return Err(failed(std::io::ErrorKind::FileTooLarge.into()));
    }
    Ok(payload)
}

pub(super) async fn on_selected(
    desk: &Desk<'_>,
    wish: Wish,
    select: &SelectArgs,
    act: &ActArgs,
    env: Env<'_>,
) -> Result<Exit, CliError> {
    if select.ids.is_empty() && select.filter.is_empty() && !select.all {
        return Err(CliError::NothingSelected);
    }
    // By name any event may be meant; by filter those that were refused, unless states are named.
    let refused: &[State] =
        if select.ids.is_empty() { &[State::Waiting, State::Dead] } else { &[] };
    let events = desk.list(&filter(&select.ids, &select.filter, refused), EVENTS_MAX).await?;
    let job = Job { wish, value: None, act };
    job.run(desk, events, &select.ids, env).await
}

pub(super) async fn replace(
    desk: &Desk<'_>,
    args: &ReplaceArgs,
    payload: &[u8],
    env: Env<'_>,
) -> Result<Exit, CliError> {
    let ids = std::slice::from_ref(&args.id);
    let events = desk.list(&filter(ids, &FilterArgs::default(), &[]), EVENTS_MAX).await?;
    if events.len() > 1 {
        let ids = events.iter().map(|event| event.position.to_string()).collect();
        return Err(CliError::Ambiguous { id: args.id.to_string(), ids });
    }
    if !args.not_json && serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_err() {
        expects_no_json(desk).await?;
    }
    let job = Job { wish: Wish::Replace, value: Some(payload), act: &args.act };
    job.run(desk, events, ids, env).await
}

/// An error where the pipeline's payloads are JSON: consumers would be the first to notice that this one is not.
async fn expects_no_json(desk: &Desk<'_>) -> Result<(), CliError> {
    let outbox = &desk.spec.outbox;
    let Some((table, column)) = desk.spec.names.table.as_ref().zip(outbox.column(Role::Payload))
    else {
        return Ok(());
    };
    match desk::json_type(desk.control.client(), table, column).await? {
        Some(type_name) => Err(CliError::NotJson {
            column: column.to_owned(),
            table: table.to_string(),
            type_name,
        }),
        None => Ok(()),
    }
}

/// An event's id that was given twice may mean an event that its user does not know of.
fn one_each(desk: &Desk<'_>, ids: &[Id], events: &[Listed]) -> Result<(), CliError> {
    for id in ids.iter().filter(|id| matches!(id, Id::Event(_))) {
        let named: Vec<&Listed> = events.iter().filter(|event| desk.names(id, event)).collect();
        if named.len() > 1 {
            let ids = named.iter().map(|event| event.position.to_string()).collect();
            return Err(CliError::Ambiguous { id: id.to_string(), ids });
        }
    }
    Ok(())
}

/// One request for some events.
struct Job<'a> {
    wish: Wish,
    value: Option<&'a [u8]>,
    act: &'a ActArgs,
}

impl Job<'_> {
    async fn run(
        &self,
        desk: &Desk<'_>,
        events: Vec<Listed>,
        ids: &[Id],
        env: Env<'_>,
    ) -> Result<Exit, CliError> {
        let missing: Vec<String> = ids
            .iter()
            .filter(|id| !events.iter().any(|event| desk.names(id, event)))
            .map(Id::to_string)
            .collect();
        let (events, refused): (Vec<_>, Vec<_>) =
            events.into_iter().partition(|event| self.refuses(event).is_none());
        one_each(desk, ids, &events)?;
        self.announce(desk, &events)?;
        let mut told: Vec<(Listed, String)> = Vec::new();
        if self.act.dry_run {
            let would = format!("would {}", self.wish.name());
            told.extend(events.into_iter().map(|event| (event, would.clone())));
        } else if !events.is_empty() && self.agreed(&events)? {
            told = self.carry_out(desk, &events, env).await?;
        } else {
            told.extend(events.into_iter().map(|event| (event, "left alone".to_owned())));
        }
        // What a filter takes in and can't be helped is told; what was named is a mistake.
        let well =
            (refused.is_empty() || ids.is_empty()) && told.iter().all(|(_, word)| fine(word));
        for event in refused {
            let why = self.refuses(&event).unwrap_or_default();
            told.push((event, why));
        }
        told.sort_by_key(|(event, _)| event.position);
        let mut out = Output::stdout();
        if self.act.json {
            let value =
                print::outcome(desk.spec.name(), self.wish, self.act.dry_run, &told, &missing);
            out.line(&format!("{value:#}")).map_err(CliError::Output)?;
        } else if told.is_empty() && missing.is_empty() {
            let text = format!("{}: no parked event matches", desk.spec.name());
            out.line(&text).map_err(CliError::Output)?;
        } else if !told.is_empty() {
            let lines: Vec<String> =
                told.iter().map(|(event, word)| format!("{}  {word}", event.position)).collect();
            out.line(&lines.join("\n")).map_err(CliError::Output)?;
        }
        if !missing.is_empty() {
            return Err(CliError::NotParked { ids: missing });
        }
        Ok(if well { Exit::Done } else { Exit::NotWell })
    }

    /// Why it makes no sense for this event.
    fn refuses(&self, event: &Listed) -> Option<String> {
        if event.state.resolved() {
            return Some(format!("nothing to do: it is {} already", event.state.name()));
        }
        if let Some(asked) = &event.requested {
            let by = asked.by.as_deref().unwrap_or("somebody");
            return Some(format!("nothing done: {} is asked for already, by {by}", asked.what));
        }
        // A topic can't be asked for again: it was made from the row, which can't be changed.
        let no_topic = event.topic.is_empty() && self.wish != Wish::Skip;
        no_topic.then(|| "nothing done: it has no topic, so it can only be skipped".to_owned())
    }

    /// The ids, before anything happens.
    fn announce(&self, desk: &Desk<'_>, events: &[Listed]) -> Result<(), CliError> {
        if events.is_empty() {
            return Ok(());
        }
        let text = print::table(desk.spec.name(), events, false);
        if self.act.json {
            Output::stderr().say(&text);
            return Ok(());
        }
        Output::stdout().line(&text).map_err(CliError::Output)
    }

    /// Asks where something would be gone or more than one event is meant. Without a terminal there is nobody to ask:
    /// what loses or changes an event is not done without `--yes`.
    fn agreed(&self, events: &[Listed]) -> Result<bool, CliError> {
        let asks = std::io::stdin().is_terminal();
        let harmless = self.wish == Wish::Retry && (events.len() == 1 || !asks);
        if self.act.yes || harmless {
            return Ok(true);
        }
        if !asks {
            return Err(CliError::NeedsYes { command: self.wish.name() });
        }
        let s = if events.len() == 1 { "" } else { "s" };
        let question = format!("{} {} event{s}? [y/N]", self.wish.name(), events.len());
        Output::stderr().say(&question);
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).map_err(CliError::Input)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }

    async fn carry_out(
        &self,
        desk: &Desk<'_>,
        events: &[Listed],
        env: Env<'_>,
    ) -> Result<Vec<(Listed, String)>, CliError> {
        let by = operator(env);
        let reason = self.act.reason.as_deref();
        let request = Request { wish: self.wish, by: &by, reason, value: self.value };
        let positions: Vec<Position> = events.iter().map(|event| event.position).collect();
        let (client, name) = (desk.control.client(), desk.spec.name());
        let asked = desk::ask(client, name, &positions, &request).await?;
        let relay = relay_runs(desk).await?;
        let waits = !self.act.no_wait && relay != Some(false);
        let deadline = Instant::now() + if waits { WAIT_MAX } else { Duration::ZERO };
        loop {
            let now = desk.by_position(&positions).await?;
            let open = now.iter().any(|event| !self.settled(event));
            if open && Instant::now() < deadline {
                sleep(LOOK_INTERVAL).await;
                continue;
            }
            let mut told = Vec::with_capacity(now.len());
            for event in now {
                let word = if !asked.contains(&event.position) {
                    self.lost(&event)
                } else if self.settled(&event) || event.requested.is_some() {
                    self.became(&event, relay)
                } else {
                    queued(blocker(desk, &event).await?.as_ref())
                };
                told.push((event, word));
            }
            return Ok(told);
        }
    }

    /// Whether nothing more is to be waited for.
    fn settled(&self, event: &Listed) -> bool {
        let tried = self.wish == Wish::Skip || event.attempts > 0 || event.state == State::Dead;
        event.state.resolved() || event.requested.is_none() && (event.declined || tried)
    }

    /// Somebody else was first.
    fn lost(&self, event: &Listed) -> String {
        let why = self.refuses(event);
        why.unwrap_or_else(|| "nothing done: somebody else was first".to_owned())
    }

    /// What became of the request.
    fn became(&self, event: &Listed, relay: Option<bool>) -> String {
        match (event.state, &event.requested) {
            (State::Done, _) => "published".to_owned(),
            (State::Skipped, _) => "skipped".to_owned(),
            (_, Some(_)) if relay == Some(false) => {
                format!("{}: asked for; no relay runs, its next start does it", self.wish.name())
            }
            (_, Some(_)) => format!("{}: asked for, not done yet", self.wish.name()),
            (_, None) if event.declined => {
                "declined by the relay: it can't be done where the event stands".to_owned()
            }
            (state, None) if event.attempts > 0 || state == State::Dead => {
                let why = event.error.as_deref().unwrap_or("no reason is known");
                format!("refused again, {}: {why}", state.name())
            }
            (_, None) => queued(None),
        }
    }
}

/// The earliest unresolved event of the same aggregate that `event` waits behind.
async fn blocker(desk: &Desk<'_>, event: &Listed) -> Result<Option<Listed>, CliError> {
    if event.aggregate.is_none() {
        return Ok(None);
    }
    let mut wanted = filter(&[], &FilterArgs::default(), &[State::Waiting, State::Dead]);
    wanted.aggregate.clone_from(&event.aggregate);
    let first = desk.list(&wanted, 1).await?.pop();
    Ok(first.filter(|first| first.position < event.position))
}

/// The event is to be published, and nothing has refused it since the request.
fn queued(blocker: Option<&Listed>) -> String {
    blocker.map_or_else(
        || "queued".to_owned(),
        |first| {
            let (state, position) = (first.state.name(), first.position);
            format!("queued; blocked by {state} event {position} of the same aggregate")
        },
    )
}

/// Whether a word of [`Job::became`] is no trouble.
fn fine(word: &str) -> bool {
    !["nothing done", "declined", "refused"].iter().any(|trouble| word.starts_with(trouble))
}

/// Whether something reads the pipeline's slot; `None` where that can't be told by the slot.
async fn relay_runs(desk: &Desk<'_>) -> Result<Option<bool>, CliError> {
    let client = desk.control.client();
    let version = server::read(client).await?.version;
    let slot = slot::read(client, version, &desk.spec.names.slot).await?;
    Ok(slot.map(|slot| slot.active_pid.is_some()))
}

/// The user of this host, as the environment and the system have it.
fn operator(env: Env<'_>) -> String {
    let name = env("USER").or_else(|| env("LOGNAME")).filter(|name| !name.is_empty());
    #[cfg(unix)]
    let uid = format!("uid {}", rustix::process::getuid().as_raw());
    #[cfg(not(unix))]
    let uid = String::from("no uid");
    let name = name.map(|name| format!("{name}, ")).unwrap_or_default();
    format!("{name}{uid}").replace('\0', "")
}
