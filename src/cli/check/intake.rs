//! The findings about an intake, a table `[inboxes.NAME]`: its database with the login of the intake, and its source.

use crate::error::Chain;
use crate::finding::{Finding, shell_word};
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
use crate::inbox::acked::{AckedSource as _, SourceProblem};
#[cfg(feature = "nats")]
use crate::inbox::nats::NatsSource;
#[cfg(feature = "rabbitmq")]
use crate::inbox::rabbitmq::RabbitSource;
#[cfg(feature = "redis")]
use crate::inbox::redis::RedisSource;
use crate::inbox::store::InboxStore;
use crate::inbox::webhook::{Secrets, WebhookConfig};
use crate::intake::{IntakeSource, IntakeSpec, hint};
use crate::postgres::control::Control;
use crate::postgres::toolkit::{ToolkitVersion, files, state};
use crate::postgres::{SourceError, error_policy};
#[cfg(feature = "nats")]
use crate::sink::nats::NatsConsumer;
#[cfg(feature = "rabbitmq")]
use crate::sink::rabbitmq::RabbitConsumer;
#[cfg(feature = "redis")]
use crate::sink::redis::RedisConsumer;
use std::io::ErrorKind;
use tokio::net::TcpListener;

/// `application_name` of the sessions.
const APPLICATION_NAME: &str = "postrider check";

/// The rights that storing needs, of which those are returned that the role does not have. `$1`: the inbox.
const MISSING_RIGHTS: &str = "\
    SELECT r.right_name || ' on ' || r.table_name FROM (\
        SELECT postrider.inbox_table(i) AS table_name, n AS right_name \
        FROM postrider.inbox_get($1, true) i, unnest(ARRAY['SELECT', 'INSERT']) n \
        UNION ALL SELECT t, n FROM (VALUES ('postrider.inbox_delta', ARRAY['INSERT']), \
            ('postrider.inbox_seen_undated', ARRAY['SELECT', 'INSERT']), \
            ('postrider.inbox_offset', ARRAY['SELECT', 'INSERT', 'UPDATE'])) v(t, names), unnest(v.names) n) r \
    WHERE NOT pg_catalog.has_table_privilege(r.table_name, r.right_name) ORDER BY 1";

/// Where messages come from, for people.
pub(super) fn place(spec: &IntakeSpec) -> String {
    match &spec.source {
        #[cfg(feature = "kafka")]
        IntakeSource::Kafka(config) => config.brokers.clone(),
        #[cfg(feature = "nats")]
        IntakeSource::Nats(config) => NatsSource::place(config),
        #[cfg(feature = "rabbitmq")]
        IntakeSource::RabbitMq(config) => RabbitSource::place(config),
        #[cfg(feature = "redis")]
        IntakeSource::Redis(config) => RedisSource::place(config),
        IntakeSource::Webhook(config) => format!("http://{}{}", config.listen, config.path),
    }
}

/// Checks the database, then the source. Nothing is changed.
pub(super) async fn check(spec: &IntakeSpec, findings: &mut Vec<Finding>) {
    database(spec, findings).await;
    match &spec.source {
        #[cfg(feature = "kafka")]
        IntakeSource::Kafka(config) => kafka(config, findings).await,
        #[cfg(feature = "nats")]
        IntakeSource::Nats(config) => findings.push(broker(
            &NatsSource::place(config),
            NatsConsumer::look(&config.access, &config.consumer).await.map_err(SourceProblem::from),
        )),
        #[cfg(feature = "rabbitmq")]
        IntakeSource::RabbitMq(config) => findings.push(broker(
            &RabbitSource::place(config),
            RabbitConsumer::look(&config.access, &config.queue).await.map_err(SourceProblem::from),
        )),
        #[cfg(feature = "redis")]
        IntakeSource::Redis(config) => findings.push(broker(
            &RedisSource::place(config),
            RedisConsumer::look_once(&config.access, &config.streams)
                .await
                .map_err(SourceProblem::from),
        )),
        IntakeSource::Webhook(config) => webhook(config, findings).await,
    }
}

/// What the broker has answered: whether what is to be read exists, or why not and what fixes it.
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
fn broker(place: &str, looked: Result<String, SourceProblem>) -> Finding {
    match looked {
        Ok(found) => Finding::ok("inbox_broker", format!("{place}: {found}")),
        Err(SourceProblem { reason, hint, .. }) => {
            Finding::error("inbox_broker", reason).why(hint.unwrap_or_default())
        }
    }
}

async fn database(spec: &IntakeSpec, findings: &mut Vec<Finding>) {
    let conninfo = &spec.inbox.conninfo;
    let control = match Control::connect(conninfo, APPLICATION_NAME).await {
        Ok(control) => control,
        Err(error) => {
            let why = error_policy::hint(&error).unwrap_or_default();
            findings.push(Finding::error("inbox_database", text(&error)).why(why));
            return;
        }
    };
    let (user, place) = (conninfo.user(), conninfo.hosts());
    findings.push(Finding::ok("inbox_database", format!("role {user:?} is let in at {place}")));
    let install = format!(
        "postrider sql --install --url ADMIN_URL --worker {role}",
        role = shell_word(conninfo.user())
    );
    match state::read_version(control.client()).await {
        Ok(ToolkitVersion::Version(number)) if number >= files::VERSION => {
            let what = format!("the database has version {number} of the SQL toolkit");
            findings.push(Finding::ok("inbox_toolkit", what));
        }
        Ok(version) => {
            let what = match version {
                ToolkitVersion::Missing => "the database does not have the SQL toolkit".to_owned(),
                ToolkitVersion::Version(number) => format!(
                    "the database has version {number} of the SQL toolkit, and this program needs {}",
                    files::VERSION
                ),
            };
            let finding = Finding::error("inbox_toolkit", what);
            findings.push(finding.why("nothing can be stored").shell(install));
            return;
        }
        Err(error) => {
            findings.push(of_error(&error, spec, &install));
            return;
        }
    }
    // What it needs to know of the inbox, and the statements that store.
    if let Err(error) = InboxStore::connect(&spec.inbox, APPLICATION_NAME).await {
        findings.push(of_error(&error, spec, &install));
        return;
    }
    findings.push(Finding::ok("inbox", format!("inbox {:?} exists", spec.inbox.inbox)));
    let missing = control.client().query(MISSING_RIGHTS, &[&spec.inbox.inbox]).await;
    let missing = missing
        .and_then(|rows| rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, _>>());
    match missing {
        Ok(missing) if missing.is_empty() => {
            let what = format!("role {user:?} may store messages");
            findings.push(Finding::ok("inbox_rights", what));
        }
        Ok(missing) => {
            let what = format!("role {user:?} lacks {}", missing.join(", "));
            let grant = format!(
                "SELECT postrider.inbox_grant({});",
                crate::postgres::names::literal(&spec.inbox.inbox)
            );
            findings.push(
                Finding::error("inbox_rights", what)
                    .why("nothing can be stored; the SQL is for the owner of the inbox, if it is another role")
                    .shell(install)
                    .sql(grant),
            );
        }
        Err(error) => {
            let error = SourceError::control("read the rights on the inbox", error);
            findings.push(of_error(&error, spec, &install));
        }
    }
}

/// The finding of an error of the inbox's database, by its SQLSTATE.
fn of_error(error: &SourceError, spec: &IntakeSpec, install: &str) -> Finding {
    let inbox = &spec.inbox.inbox;
    let why = hint(error, inbox).or_else(|| error_policy::hint(error)).unwrap_or_default();
    match error.sqlstate().map(|state| state.as_str().to_owned()).as_deref() {
        Some("PR121") => Finding::error("inbox", format!("there is no inbox {inbox:?}"))
            .why("nothing can be stored; an administrator creates it")
            .shell(format!("postrider inbox create {inbox} --url ADMIN_URL")),
        Some("PR124") => Finding::error("inbox", text(error)).why(why),
        Some("42501") => {
            Finding::error("inbox_rights", text(error)).why(why).shell(install.to_owned())
        }
        _ => Finding::error("inbox_database", text(error)).why(why),
    }
}

fn text(error: &SourceError) -> String {
    Chain(error).to_string()
}

/// Asks the brokers for the topics. The client waits, so another thread asks.
#[cfg(feature = "kafka")]
async fn kafka(config: &crate::inbox::kafka::KafkaSourceConfig, findings: &mut Vec<Finding>) {
    let (asking, brokers) = (config.clone(), &config.brokers);
    let ask = move || crate::inbox::kafka::missing_topics(&asking);
    let error = match tokio::task::spawn_blocking(ask).await {
        Ok(Ok(missing)) => {
            findings.push(Finding::ok("inbox_broker", format!("{brokers} answers")));
            if missing.is_empty() {
                let what = format!("topics: {}", config.topics.join(", "));
                findings.push(Finding::ok("inbox_topics", what));
            } else {
                let what = format!("topics that this login does not see: {}", missing.join(", "));
                findings.push(
                    Finding::warning("inbox_topics", what).why(
                        "their records are stored once they exist, and the login may read them",
                    ),
                );
            }
            return;
        }
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    findings.push(
        Finding::error("inbox_broker", format!("{brokers} can't be asked: {error}"))
            .why("check `source.brokers`, `source.properties` and the network"),
    );
}

async fn webhook(config: &WebhookConfig, findings: &mut Vec<Finding>) {
    findings.push(match Secrets::read(&config.secret_file, &config.scheme) {
        Ok(secrets) => Finding::ok("inbox_secrets", format!("secrets: {}", secrets.count())),
        Err(error) => Finding::error("inbox_secrets", Chain(&error).to_string())
            .why("no signature can be checked, so every request is refused"),
    });
    let listen = config.listen;
    findings.push(match TcpListener::bind(listen).await {
        Ok(_free) => Finding::ok("inbox_listen", format!("{listen} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            Finding::warning("inbox_listen", format!("another process listens on {listen}"))
                .why("nothing is wrong if it is this intake, which runs already")
        }
        Err(error) => Finding::error("inbox_listen", format!("can't listen on {listen}: {error}"))
            .why("give source.listen an address of this host"),
    });
}
