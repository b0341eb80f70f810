//! `postrider replay`: publishes again what a person names, and tells how it goes.
//!
//! Progress and warnings go to standard error, the last word to standard output.

mod args;
mod print;

pub use args::{ReplayArgs, SourceArg};

use super::bookmark::{session, the_one};
use super::error::CliError;
use super::exit::Exit;
use super::output::Output;
use crate::config::{self, Config};
use crate::event::PgTime;
use crate::lsn::Lsn;
use crate::postgres::control::Control;
use crate::postgres::replay as rows;
use crate::replay::{From, Job, Options, Prepared, Request, SourceChoice, Until};
use crate::zone::Zone;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What the server knows the session by.
const APPLICATION_NAME: &str = "postrider replay";

/// How far the process gives way, as `nice` counts.
#[cfg(unix)]
const NICENESS: i32 = 19;

pub(super) async fn run(config: &Config, args: &ReplayArgs) -> Result<Exit, CliError> {
    let spec = the_one(config)?;
    give_way();
    let control = session(spec, APPLICATION_NAME).await?;
    let what = if let Some(name) = &args.resume {
        Prepared::Resume(Some(name.clone()).filter(|name| !name.is_empty()))
    } else {
        let request = request(&control, args, spec.names.times.zone.as_ref()).await?;
        let name = match &args.name {
            Some(name) => name.clone(),
            None => default_name(&request, &control).await?,
        };
        Prepared::New { name, request: Box::new(request) }
    };
    let job = Job::prepare(Arc::new(spec.clone()), control, what).await?;
    let plan = job.plan().clone();
    let options = Options { rate: args.rate, dry_run: args.dry_run };
    Output::stderr().say(&print::plan(spec.name(), &plan, options));
    let mut screen = print::Screen::new(std::io::stderr().is_terminal());
    let ended = Box::pin(job.run(options, stop(), &mut |told| screen.tell(&told))).await;
    screen.end();
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) if args.dry_run => return Err(error.into()),
        Err(error) => {
            return Err(CliError::ReplayEnded { name: plan.name, source: Box::new(error) });
        }
    };
    let text = if args.json {
        format!("{:#}", print::json(spec.name(), &plan, options, &ended))
    } else {
        print::ended(&plan, options, &ended)
    };
    Output::stdout().line(&text).map_err(CliError::Output)?;
    let well = ended.missing.is_empty() && ended.tally.refused == 0 && !ended.stopped;
    Ok(if well { Exit::Done } else { Exit::NotWell })
}

/// Lets everything else of this host go first: a live stream beside it has the processor when it wants it.
fn give_way() {
    #[cfg(unix)]
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!(%error, "the replay runs at the priority of the rest");
    }
}

/// What was asked for, with times as the server reads them.
async fn request(
    control: &Control,
    args: &ReplayArgs,
    zone: Option<&Zone>,
) -> Result<Request, CliError> {
    let from = match (&args.bookmark, args.lsn, &args.since) {
        (Some(name), _, _) => From::Bookmark(name.clone()),
        (None, Some(at), _) => From::Lsn { at, timeline: args.timeline },
        (None, None, Some(text)) => From::Since(time(control, "--since", text, zone).await?),
        (None, None, None) => From::Anywhere,
    };
    let until = match &args.until {
        None => None,
        Some(text) => Some(match text.parse::<Lsn>() {
            Ok(lsn) => Until::Lsn(lsn),
            Err(_) => Until::Time(time(control, "--until", text, zone).await?),
        }),
    };
    Ok(Request {
        from,
        until,
        ids: args.ids.clone(),
        aggregate: args.aggregate.clone(),
        to: args.to.clone(),
        include_parked: args.include_parked,
        source: match args.source {
            SourceArg::Auto => SourceChoice::Auto,
            SourceArg::Wal => SourceChoice::Wal,
            SourceArg::Table => SourceChoice::Table,
        },
    })
}

/// A point in time, or how long ago. Of a time that comes twice, the one with which more is replayed.
async fn time(
    control: &Control,
    flag: &'static str,
    text: &str,
    zone: Option<&Zone>,
) -> Result<PgTime, CliError> {
    let wrong = || CliError::NotATime { flag, text: text.to_owned() };
    if let Ok(ago) = config::duration(text) {
        let now = rows::time(control.client(), "now", None, false).await?.ok_or_else(wrong)?;
        let ago = i64::try_from(ago.as_micros()).unwrap_or(i64::MAX);
        return Ok(PgTime { micros: now.micros.saturating_sub(ago) });
    }
    rows::time(control.client(), text, zone, flag == "--until").await?.ok_or_else(wrong)
}

/// `before-fix-20260301T040000`: where it begins, and the second of this host.
async fn default_name(request: &Request, control: &Control) -> Result<String, CliError> {
    let what = match &request.from {
        From::Bookmark(name) => name.chars().take(40).collect(),
        From::Lsn { at, .. } => format!("lsn-{}", at.commit_lsn).replace('/', "-"),
        From::Since(_) => "since".to_owned(),
        From::Anywhere => "events".to_owned(),
    };
    let at = rows::stamp(control.client()).await?;
    // Two of one second have two names all the same.
    let micros = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_millis();
    Ok(format!("{what}-{at}.{micros:03}"))
}

/// Ctrl-C, or SIGTERM.
async fn stop() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            return;
        }
    }
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
