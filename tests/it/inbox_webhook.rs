//! The receiver of webhooks: each acknowledged request is stored once, whatever happens to the database, and no other.

mod outages;
mod program;
mod refused;
mod sender;
mod stored;

use crate::await_that::{SOON, await_that};
use crate::groups::number;
use crate::private::free_port;
use crate::server::{Client, Database, Version};
use crate::toolkit::install_toolkit;
use postrider::inbox::mapping::MessageRules;
use postrider::inbox::store::InboxSpec;
use postrider::inbox::webhook::{Scheme, WebhookConfig};
use postrider::intake::{IntakeService, IntakeSource, IntakeSpec};
use postrider::intake_status::{IntakeHandle, IntakeSnapshot, IntakeState};
use postrider::pipeline::{Stop, StopHandle};
use postrider::postgres::Conninfo;
use postrider::secret_file::SecretFile;
use sender::Sender;
use std::net::SocketAddr;
use std::time::Duration;
use tempfile::TempDir;

/// The secret of a receiver, unless the test gives it others.
pub(crate) const SECRET: &str = "whsec_c2VjcmV0LW9mLXRoZS1ob29rcw==";

/// Creates the inbox `hooks` in a database.
async fn create_inbox(sql: &Client) {
    install_toolkit(sql, "postgres").await;
    sql.batch("select postrider.create_inbox('hooks')").await;
}

/// A receiver in this process, as `postrider inbox run` has it.
pub(crate) struct Receiver {
    pub(crate) port: u16,
    handle: IntakeHandle,
    stop: StopHandle,
    service: IntakeService,
    secrets: TempDir,
}

impl Receiver {
    /// Starts one with scheme `standard`, after the test has changed its settings, and waits until it listens.
    async fn start(url: &str, change: impl FnOnce(&mut IntakeSpec, &mut WebhookConfig)) -> Self {
        let (secrets, port) = (TempDir::new().expect("a directory"), free_port());
        let file = secrets.path().join("hooks");
        std::fs::write(&file, format!("{SECRET}\n")).expect("a file of secrets");
        let mut config = WebhookConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], port)),
            path: "/hooks".to_owned(),
            scheme: Scheme::Standard,
            secret_file: SecretFile::new(file),
            tolerance: Duration::from_mins(5),
            body_max: 64 << 10,
            connections_max: 64,
        };
        let conninfo = Conninfo::parse(url, &|_| None).expect("a URL");
        let mut spec = IntakeSpec {
            name: "hooks".to_owned(),
            inbox: InboxSpec { inbox: "hooks".to_owned(), conninfo },
            source: IntakeSource::Webhook(Box::new(config.clone())),
            rules: MessageRules::default(),
            batch_messages: 500,
            pending_max: None,
        };
        change(&mut spec, &mut config);
        spec.source = IntakeSource::Webhook(Box::new(config));
        let (stop, wait) = Stop::new();
        let handle = IntakeHandle::new("hooks", "hooks", "webhook");
        let service = IntakeService::start(vec![(spec, handle.clone())], &wait).expect("a thread");
        let receiver = Self { port, handle, stop, service, secrets };
        await_that("the receiver to listen", SOON, || async { receiver.sender().connects().await })
            .await;
        receiver
    }

    /// The same, and waits until it stores requests.
    async fn storing(url: &str, change: impl FnOnce(&mut IntakeSpec, &mut WebhookConfig)) -> Self {
        let receiver = Self::start(url, change).await;
        receiver.await_state(IntakeState::Storing).await;
        receiver
    }

    fn sender(&self) -> Sender {
        Sender::new(self.port, SECRET)
    }

    /// Replaces the file of secrets.
    fn give_secrets(&self, secrets: &[&str]) {
        let file = self.secrets.path().join("hooks");
        std::fs::write(file, secrets.join("\n")).expect("a file of secrets");
    }

    fn status(&self) -> IntakeSnapshot {
        self.handle.read()
    }

    async fn await_state(&self, state: IntakeState) {
        await_that(&format!("state {}", state.name()), SOON, || async {
            let status = self.status();
            if status.state == state { Ok(()) } else { Err(format!("{status:?}")) }
        })
        .await;
    }

    /// Stops it, and waits until its thread has ended.
    async fn stop(mut self) -> IntakeSnapshot {
        self.stop.stop();
        let ended = tokio::time::timeout(SOON, self.service.next_exit()).await;
        let (_, exit) = ended.expect("the end of the receiver").expect("a receiver");
        assert_eq!(exit, postrider::intake::IntakeExit::Stopped);
        self.status()
    }
}

/// A database with the inbox, and a receiver that stores in it.
pub(crate) struct Hooks {
    database: Database,
    pub(crate) sql: Client,
    pub(crate) receiver: Receiver,
}

impl Hooks {
    async fn start(version: Version, test: &str) -> Self {
        Self::start_with(version, test, |_, _| {}).await
    }

    pub(crate) async fn start_with(
        version: Version,
        test: &str,
        change: impl FnOnce(&mut IntakeSpec, &mut WebhookConfig),
    ) -> Self {
        let (database, sql) = with_inbox(version, test).await;
        let receiver = Receiver::storing(&database.url(), change).await;
        Self { database, sql, receiver }
    }

    /// Number of messages in the inbox.
    pub(crate) async fn count(&self) -> i64 {
        number(&self.sql, "select count(*) from postrider_inbox.hooks").await
    }
}

async fn with_inbox(version: Version, test: &str) -> (Database, Client) {
    let database = Database::create(version, test).await;
    let sql = database.connect().await;
    create_inbox(&sql).await;
    (database, sql)
}
