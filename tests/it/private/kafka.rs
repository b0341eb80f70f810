//! A Kafka broker to hurt.

/// Storage and classes that brokers begin with.
pub(crate) mod template;

use super::{Dir, END_DEADLINE, START_DEADLINE, Signal, exit_of, free_port, signal};
use crate::await_that::await_or_dump;
use crate::server::servers;
use crate::topic;
use rdkafka::consumer::{BaseConsumer, Consumer};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

/// A Kafka broker of the test's own.
pub(crate) struct PrivateKafka {
    port: u16,
    controller: u16,
    cluster: String,
    dir: Dir,
    child: Option<Child>,
}

/// Kinds of resources, operations and permissions, as the protocol numbers them.
const TOPIC: u8 = 2;
const GROUP: u8 = 3;
const CLUSTER: u8 = 4;
const TRANSACTIONAL_ID: u8 = 5;
const ALL: u8 = 2;
const READ: u8 = 3;
const WRITE: u8 = 4;
const CREATE: u8 = 5;
const DESCRIBE: u8 = 8;
const DENY: u8 = 2;
const ALLOW: u8 = 3;

/// What a right is about, by its literal name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Resource<'a> {
    Topic(&'a str),
    Group(&'a str),
    TransactionalId(&'a str),
}

impl<'a> Resource<'a> {
    const fn kind_and_name(self) -> (u8, &'a str) {
        match self {
            Self::Topic(name) => (TOPIC, name),
            Self::Group(name) => (GROUP, name),
            Self::TransactionalId(name) => (TRANSACTIONAL_ID, name),
        }
    }
}

/// What may be done with a resource.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Read,
    Write,
    Describe,
}

impl PrivateKafka {
    /// Starts one with extra lines for `server.properties`.
    pub(crate) async fn start(extra_properties: &str) -> Self {
        Self::start_on(|_, _| extra_properties.to_owned()).await
    }

    /// The same where topics may have rules, and what has none is open to everybody.
    pub(crate) async fn start_with_rules() -> Self {
        Self::start(
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
             allow.everyone.if.no.acl.found=true",
        )
        .await
    }

    /// The same with lines that are made from the ports of its listeners: brokers' and controller's.
    pub(crate) async fn start_on(extra_properties: impl FnOnce(u16, u16) -> String) -> Self {
        Self::start_as(extra_properties, free_port(), cluster_id(), true).await
    }

    /// A second broker of the same cluster.
    pub(crate) async fn start_beside(&self) -> Self {
        let properties = |port, _| {
            format!(
                "process.roles=broker\nnode.id=2\nlisteners=PLAINTEXT://127.0.0.1:{port}\n\
                 advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n"
            )
        };
        Self::start_as(properties, self.controller, self.cluster.clone(), false).await
    }

    async fn start_as(
        extra_properties: impl FnOnce(u16, u16) -> String,
        controller: u16,
        cluster: String,
        first: bool,
    ) -> Self {
        template::need_archive().await;
        let dir = Dir::create("kafka");
        let port = free_port();
        let properties =
            Self::properties(&dir.0, port, controller, &extra_properties(port, controller));
        fs::write(dir.0.join("server.properties"), properties).expect("server.properties");
        if first {
            template::storage().await.copy(&dir.0.join("data"), &cluster);
        } else {
            format(&dir, &cluster).await;
        }
        let mut broker = Self { port, controller, cluster, dir, child: None };
        broker.restart().await;
        broker
    }

    fn properties(dir: &Path, port: u16, controller: u16, extra: &str) -> String {
        format!(
            include_str!("kafka.properties"),
            data = dir.join("data").display(),
            port = port,
            controller = controller,
            extra = extra
        )
    }

    /// Denies everybody everything on a topic, or takes that back. By the protocol: the tools are not everywhere.
    pub(crate) fn deny(&self, topic: &str, deny: bool) {
        if deny { self.rule(topic, ALL, DENY) } else { self.no_rules(topic) }
    }

    /// Denies everybody everything with a transactional id, or takes that back.
    pub(crate) fn deny_transactions(&self, id: &str, deny: bool) {
        if deny {
            let rest = [text("User:ANONYMOUS"), text("*"), vec![ALL, DENY]].concat();
            self.change_rules(30, (TRANSACTIONAL_ID, id), &rest);
        } else {
            self.change_rules(31, (TRANSACTIONAL_ID, id), &[0xff, 0xff, 0xff, 0xff, 1, 1]);
        }
    }

    /// Denies everybody this operation, and no other one.
    pub(crate) fn deny_operation(&self, resource: Resource<'_>, operation: Operation) {
        let operation = match operation {
            Operation::Read => READ,
            Operation::Write => WRITE,
            Operation::Describe => DESCRIBE,
        };
        // Allowed first: a resource with a rule is closed to all that no rule allows.
        for (operation, permission) in [(ALL, ALLOW), (operation, DENY)] {
            let rest = [text("User:ANONYMOUS"), text("*"), vec![operation, permission]].concat();
            self.change_rules(30, resource.kind_and_name(), &rest);
        }
    }

    /// Removes all rules of a resource.
    pub(crate) fn remove_rules(&self, resource: Resource<'_>) {
        self.change_rules(31, resource.kind_and_name(), &[0xff, 0xff, 0xff, 0xff, 1, 1]);
    }

    /// Denies everybody to write to a topic, and nothing else.
    pub(crate) fn deny_writes(&self, topic: &str) {
        self.rule(topic, WRITE, DENY);
        self.rule(topic, ALL, ALLOW);
    }

    /// Denies everybody to create a topic of this name, and nothing else: as one of a cluster, and by its name.
    pub(crate) fn deny_creation(&self, topic: &str) {
        for (kind, name) in [(CLUSTER, "kafka-cluster"), (TOPIC, topic)] {
            // Allowed first: a resource with a rule is closed to all that no rule allows, to the broker itself too.
            for (operation, permission) in [(ALL, ALLOW), (CREATE, DENY)] {
                let who = [text("User:ANONYMOUS"), text("*"), vec![operation, permission]].concat();
                self.change_rules(30, (kind, name), &who);
            }
        }
    }

    /// For everybody, by the topic's literal name.
    fn rule(&self, topic: &str, operation: u8, permission: u8) {
        let rest = [text("User:ANONYMOUS"), text("*"), vec![operation, permission]].concat();
        self.change_rules(30, (TOPIC, topic), &rest);
    }

    fn no_rules(&self, topic: &str) {
        // Any principal, any host (null), any operation, any permission.
        self.change_rules(31, (TOPIC, topic), &[0xff, 0xff, 0xff, 0xff, 1, 1]);
    }

    /// One creation, or one filter.
    fn change_rules(&self, api: i16, (kind, name): (u8, &str), rest: &[u8]) {
        let parts: [&[u8]; 8] = [
            &api.to_be_bytes(),
            // Version 1, correlation 7, client "t", one element.
            &[0, 1, 0, 0, 0, 7],
            &text("t"),
            &[0, 0, 0, 1],
            &[kind],
            &text(name),
            &[3],
            rest,
        ];
        let answer = self.exchange(&parts.concat());
        // Correlation, throttle, one result, its error code.
        assert_eq!(answer[..4], [0, 0, 0, 7], "{answer:?}");
        assert_eq!(answer[8..14], [0, 0, 0, 1, 0, 0], "{answer:?}");
    }

    /// From now on this is the password of `user` for SCRAM-SHA-256, and no other.
    pub(crate) fn set_scram(&self, user: &str, password: &str) {
        let compact = |bytes: &[u8]| {
            let length = u8::try_from(bytes.len() + 1).expect("a short text");
            [&[length][..], bytes].concat()
        };
        let (salt, iterations) = (b"0123456789abcdef", 4_096_i32);
        let salted = Command::new("openssl")
            .args(["kdf", "-keylen", "32", "-binary", "-kdfopt", "digest:SHA256"])
            .args(["-kdfopt", &format!("pass:{password}"), "-kdfopt", "salt:0123456789abcdef"])
            .args(["-kdfopt", &format!("iter:{iterations}"), "PBKDF2"])
            .output()
            .expect("openssl");
        assert_eq!((salted.status.success(), salted.stdout.len()), (true, 32), "{salted:?}");
        let parts: [&[u8]; 11] = [
            // AlterUserScramCredentials, version 0, correlation 7, client "t", no tags.
            &[0, 51, 0, 0, 0, 0, 0, 7],
            &text("t"),
            &[0],
            // No deletion, one change: SCRAM-SHA-256.
            &[1, 2],
            &compact(user.as_bytes()),
            &[1],
            &iterations.to_be_bytes(),
            &compact(salt),
            &compact(&salted.stdout),
            &[0],
            &[0],
        ];
        let answer = self.exchange(&parts.concat());
        // Correlation, tags, throttle, one result of the user, its error code.
        assert_eq!(answer[..4], [0, 0, 0, 7], "{answer:?}");
        assert_eq!(answer[9..10], [2], "{answer:?}");
        assert_eq!(answer[11 + user.len()..][..2], [0, 0], "{answer:?}");
    }

    /// A request, and the answer to it.
    fn exchange(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.brokers()).expect("a connection");
        let length = u32::try_from(request.len()).expect("a short request").to_be_bytes();
        stream.write_all(&[&length[..], request].concat()).expect("a request");
        let mut length = [0; 4];
        stream.read_exact(&mut length).expect("an answer");
        let mut answer = vec![0; usize::try_from(u32::from_be_bytes(length)).expect("a length")];
        stream.read_exact(&mut answer).expect("an answer");
        answer
    }

    /// Its address.
    pub(crate) fn brokers(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("a running broker").id()
    }

    /// The last lines of its log.
    pub(crate) fn log(&self) -> String {
        self.dir.log()
    }

    /// Whether its log has these words anywhere.
    pub(crate) fn has_logged(&self, words: &str) -> bool {
        let log = std::fs::read(self.dir.0.join("log")).expect("its log");
        String::from_utf8_lossy(&log).contains(words)
    }

    /// kill -9.
    pub(crate) async fn kill(&mut self) {
        self.end(Signal::Kill).await;
    }

    /// Lines that take the place of those before, at its next start.
    pub(crate) fn set(&self, properties: &str) {
        let path = self.dir.0.join("server.properties");
        let mut file = File::options().append(true).open(path).expect("server.properties");
        writeln!(file, "{properties}").expect("server.properties");
    }

    /// A clean stop.
    pub(crate) async fn stop(&mut self) {
        self.end(Signal::Term).await;
    }

    async fn end(&mut self, how: Signal) {
        let Some(mut child) = self.child.take() else { return };
        signal(child.id(), how);
        exit_of(&mut child, END_DEADLINE).await;
    }

    /// A copy of its data, which it must not have open.
    pub(crate) fn saved(&self) -> tempfile::TempDir {
        assert!(self.child.is_none(), "the broker runs");
        let saved = tempfile::tempdir().expect("a directory");
        copy(&self.dir.0.join("data"), &saved.path().join("data"));
        saved
    }

    /// Replaces its data by a copy: what was written since is gone.
    pub(crate) fn restore(&self, saved: &tempfile::TempDir) {
        assert!(self.child.is_none(), "the broker runs");
        let data = self.dir.0.join("data");
        fs::remove_dir_all(&data).expect("its data");
        copy(&saved.path().join("data"), &data);
    }

    /// Replaces its data by those of another cluster, which has no topic: its addresses stay. It must not be running.
    pub(crate) async fn become_another_cluster(&mut self) {
        assert!(self.child.is_none(), "the broker runs");
        let data = self.dir.0.join("data");
        fs::remove_dir_all(&data).expect("its data");
        self.cluster = cluster_id();
        template::storage().await.copy(&data, &self.cluster);
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub(crate) fn freeze(&self) {
        signal(self.pid(), Signal::Stop);
    }

    /// The end of [`Self::freeze`].
    pub(crate) fn thaw(&self) {
        signal(self.pid(), Signal::Cont);
    }

    /// Starts it on the data and the port that it had, and waits until it answers. It must not be running.
    pub(crate) async fn restart(&mut self) {
        assert!(self.child.is_none(), "the broker runs already");
        let mut command = java(&self.dir.0);
        command
            .arg(format!("-XX:SharedArchiveFile={}", template::archive().display()))
            .arg("kafka.Kafka");
        command.arg(self.dir.0.join("server.properties"));
        let child = std::cell::RefCell::new(self.dir.spawn(&mut command));
        let brokers = self.brokers();
        await_or_dump(
            "a private Kafka",
            START_DEADLINE,
            || async {
                if let Ok(Some(status)) = child.borrow_mut().try_wait() {
                    return Err(format!("it ended: {status}"));
                }
                look(brokers.clone()).await
            },
            || self.dir.log(),
        )
        .await;
        self.child = Some(child.into_inner());
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "a copy of {}", from.display());
}

/// Java with a broker's classes, in its directory. Small and quick to start: a test's broker holds little and lives for
/// seconds.
fn java(dir: &Path) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xms128m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]);
    command.arg(format!("{}/*", servers().get("KAFKA_LIB")));
    command.current_dir(dir);
    command
}

/// Formats the storage that a directory's `server.properties` names.
async fn format(dir: &Dir, cluster: &str) {
    let mut command = java(&dir.0);
    command.args(["kafka.tools.StorageTool", "format", "-t", cluster, "-c", "server.properties"]);
    let mut format = dir.spawn(&mut command);
    let status = exit_of(&mut format, START_DEADLINE).await;
    assert!(status.success(), "Kafka's storage could not be formatted\n{}", dir.log());
}

async fn look(brokers: String) -> Result<(), String> {
    let look = tokio::task::spawn_blocking(move || serves(&brokers));
    look.await.unwrap_or_else(|error| Err(error.to_string()))
}

/// The broker answers a metadata request and leads.
fn serves(brokers: &str) -> Result<(), String> {
    let client: BaseConsumer = topic::client_config(brokers).create().map_err(|e| e.to_string())?;
    let metadata =
        client.fetch_metadata(None, Duration::from_secs(2)).map_err(|error| error.to_string())?;
    if metadata.brokers().is_empty() { Err("no broker is registered".to_owned()) } else { Ok(()) }
}

/// Kafka's form of an id: 22 characters of URL-safe base64. Any such word will do, but for one that begins with a dash.
fn cluster_id() -> String {
    std::iter::repeat_with(fastrand::alphanumeric).take(21).chain(std::iter::once('A')).collect()
}

impl Drop for PrivateKafka {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
        if std::thread::panicking() {
            // Beside the failure, where the test's own output is captured.
            #[expect(clippy::print_stderr, reason = "the log of a failed test")]
            {
                eprintln!("--- broker at {} ---\n{}", self.port, self.dir.log());
            }
        }
    }
}

/// A string of the protocol.
fn text(text: &str) -> Vec<u8> {
    let length = i16::try_from(text.len()).expect("a short name").to_be_bytes();
    [&length[..], text.as_bytes()].concat()
}
