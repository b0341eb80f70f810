//! A Kafka cluster of three brokers in KRaft mode, each of them also a controller, which can be disturbed one by one.
//!
//! Each broker has one listener per relay, which it advertises at the port of a proxy, and one direct listener for the
//! harness and for the other brokers.

use crate::await_that::await_that;
use crate::private::kafka::template::{archive, need_archive};
use crate::private::{Signal, exit_of, free_port, signal};
use crate::proxy::Proxy;
use crate::reader::PARTITIONS;
use crate::relays::RELAYS;
use crate::server::servers;
use crate::topic;
use rdkafka::admin::{AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::types::RDKafkaErrorCode;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) const BROKERS: usize = 3;
const START_DEADLINE: Duration = Duration::from_mins(2);

/// The cluster.
pub(crate) struct Cluster {
    pub(crate) brokers: Vec<Broker>,
    dir: PathBuf,
}

/// One broker, and the proxies in front of it, one for each relay.
pub(crate) struct Broker {
    pub(crate) proxies: Vec<Proxy>,
    direct: u16,
    pub(crate) dir: PathBuf,
    child: Option<Child>,
}

impl Cluster {
    /// Starts all brokers, with their files in `dir` (removed at the end).
    pub(crate) async fn start(dir: &Path) -> Self {
        need_archive().await;
        let controllers: Vec<u16> = (0..BROKERS).map(|_| free_port()).collect();
        let voters = controllers.iter().zip(1..);
        let voters: Vec<String> =
            voters.map(|(port, node)| format!("{node}@127.0.0.1:{port}")).collect();
        let mut cluster = Self { brokers: Vec::new(), dir: dir.to_owned() };
        for (node, controller) in (1..).zip(&controllers) {
            let broker = Broker::format(dir, node, *controller, &voters.join(",")).await;
            cluster.brokers.push(broker);
        }
        for broker in &mut cluster.brokers {
            broker.start();
        }
        cluster.await_brokers().await;
        cluster
    }

    /// Addresses that lead directly to the brokers.
    pub(crate) fn direct(&self) -> String {
        addresses(self.brokers.iter().map(|broker| broker.direct))
    }

    /// Addresses for one relay: those of its proxies.
    pub(crate) fn of_relay(&self, relay: usize) -> String {
        addresses(self.brokers.iter().map(|broker| broker.proxies[relay].port))
    }

    /// All proxies of one relay.
    pub(crate) fn proxies(&self, relay: usize) -> impl Iterator<Item = &Proxy> {
        self.brokers.iter().map(move |broker| &broker.proxies[relay])
    }

    /// Waits until all brokers are registered.
    pub(crate) async fn await_brokers(&self) {
        let addresses = self.direct();
        await_that("three brokers", START_DEADLINE, || {
            let addresses = addresses.clone();
            async {
                let answer = tokio::task::spawn_blocking(move || registered(&addresses));
                match answer.await.expect("an answer")? {
                    BROKERS => Ok(()),
                    brokers => Err(format!("{brokers} brokers")),
                }
            }
        })
        .await;
    }

    /// Creates a topic with three replicas, two of which must have a record. It has more partitions than the partition
    /// scheduler serves at a time.
    pub(crate) async fn create_topic(&self, name: &str) {
        let addresses = self.direct();
        let admin = topic::admin(&addresses);
        await_that(&format!("topic {name}"), START_DEADLINE, || async {
            let topic = NewTopic::new(name, PARTITIONS, TopicReplication::Fixed(3))
                .set("min.insync.replicas", "2")
                .set("message.timestamp.type", "LogAppendTime");
            let created = admin.create_topics([&topic], &AdminOptions::new()).await;
            match created.map_err(|error| error.to_string())?.pop() {
                Some(Err((_, code))) if code != RDKafkaErrorCode::TopicAlreadyExists => {
                    Err(code.to_string())
                }
                Some(Ok(_) | Err(_)) | None => Ok(()),
            }
        })
        .await;
    }

    /// Deletes a topic, and waits until every broker knows that: for a moment the others still accept records for it
    /// and acknowledge them.
    pub(crate) async fn delete_topic(&self, name: &str) {
        let admin = topic::admin(&self.direct());
        await_that(&format!("no topic {name}"), START_DEADLINE, || async {
            drop(admin.delete_topics(&[name], &AdminOptions::new()).await);
            for broker in &self.brokers {
                let (address, name) = (addresses([broker.direct].into_iter()), name.to_owned());
                let answer = tokio::task::spawn_blocking(move || partitions(&address, &name));
                match answer.await.expect("an answer")? {
                    0 => {}
                    some => {
                        return Err(format!(
                            "the broker at {} has {some} partitions",
                            broker.direct
                        ));
                    }
                }
            }
            Ok(())
        })
        .await;
    }

    /// Sets the largest batch that a topic accepts, in bytes.
    pub(crate) async fn limit(&self, name: &str, bytes: u32) {
        let admin = topic::admin(&self.direct());
        let bytes = bytes.to_string();
        await_that(&format!("{name} takes {bytes}"), START_DEADLINE, || async {
            let change = AlterConfig::new(ResourceSpecifier::Topic(name))
                .set("max.message.bytes", &bytes)
                .set("min.insync.replicas", "2")
                .set("message.timestamp.type", "LogAppendTime");
            let altered = admin.alter_configs([&change], &AdminOptions::new()).await;
            match altered.map_err(|error| error.to_string())?.pop() {
                Some(Err((_, code))) => Err(code.to_string()),
                Some(Ok(_)) | None => Ok(()),
            }
        })
        .await;
    }

    /// The broker that leads the first partition of a topic.
    pub(crate) async fn leader(&self, name: &str) -> Option<usize> {
        let (addresses, name) = (self.direct(), name.to_owned());
        let answer = tokio::task::spawn_blocking(move || {
            let client: BaseConsumer = topic::client_config(&addresses).create().ok()?;
            let metadata = client.fetch_metadata(Some(&name), Duration::from_secs(5)).ok()?;
            let leader = metadata.topics().first()?.partitions().first()?.leader();
            usize::try_from(leader).ok()?.checked_sub(1)
        });
        answer.await.expect("an answer").filter(|leader| *leader < BROKERS)
    }
}

fn addresses(ports: impl Iterator<Item = u16>) -> String {
    ports.map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",")
}

/// Number of partitions that a topic has according to this broker: a client that knows only this broker asks it.
fn partitions(address: &str, name: &str) -> Result<usize, String> {
    let client: BaseConsumer = topic::client_config(address).create().map_err(|e| e.to_string())?;
    let metadata = client.fetch_metadata(Some(name), Duration::from_secs(5));
    let metadata = metadata.map_err(|error| error.to_string())?;
    Ok(metadata.topics().first().map_or(0, |topic| topic.partitions().len()))
}

fn registered(addresses: &str) -> Result<usize, String> {
    let client: BaseConsumer =
        topic::client_config(addresses).create().map_err(|error| error.to_string())?;
    let metadata = client.fetch_metadata(None, Duration::from_secs(2));
    Ok(metadata.map_err(|error| error.to_string())?.brokers().len())
}

impl Broker {
    async fn format(dir: &Path, node: usize, controller: u16, voters: &str) -> Self {
        let dir = dir.join(format!("broker-{node}"));
        fs::create_dir_all(&dir).expect("a broker's directory");
        let (direct, mut proxies, mut ports) = (free_port(), Vec::new(), Vec::new());
        for _ in 0..RELAYS {
            let port = free_port();
            proxies.push(Proxy::start(port, None));
            ports.push(port);
        }
        let mut listens = format!("DIRECT://127.0.0.1:{direct}");
        let mut advertised = listens.clone();
        let mut protocols = "DIRECT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned();
        for ((relay, port), proxy) in ports.iter().enumerate().zip(&proxies) {
            write!(listens, ",RELAY{relay}://127.0.0.1:{port}").expect("a string takes all");
            write!(advertised, ",RELAY{relay}://127.0.0.1:{}", proxy.port)
                .expect("a string takes all");
            write!(protocols, ",RELAY{relay}:PLAINTEXT").expect("a string takes all");
        }
        let properties = format!(
            include_str!("broker.properties"),
            node = node,
            voters = voters,
            listens = listens,
            advertised = advertised,
            protocols = protocols,
            controller = controller,
            data = dir.join("data").display(),
        );
        fs::write(dir.join("server.properties"), properties).expect("server.properties");
        let mut broker = Self { proxies, direct, dir, child: None };
        let mut format = broker.java("kafka.tools.StorageTool");
        format.args(["format", "-t", "chaosCHAOSchaosCHAOSch", "-c", "server.properties"]);
        let mut format = broker.spawn(&mut format);
        let status = exit_of(&mut format, START_DEADLINE).await;
        assert!(status.success(), "Kafka's storage: {}", broker.dir.join("log").display());
        broker.child = None;
        broker
    }

    fn java(&self, class: &str) -> Command {
        let mut command = Command::new("java");
        let flags = ["-Xms64m", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];
        command.arg(format!("-XX:SharedArchiveFile={}", archive().display())).args(flags);
        command.args(["-Dorg.slf4j.simpleLogger.showDateTime=true", "-cp"]);
        command.arg(format!("{}/*", servers().get("KAFKA_LIB"))).arg(class);
        command.current_dir(&self.dir);
        command
    }

    /// The output goes to `log`, the process ID to `pid`, for `scripts/servers down`.
    fn spawn(&self, command: &mut Command) -> Child {
        let log = File::options().create(true).append(true).open(self.dir.join("log"));
        let log = log.expect("a log");
        let errors = log.try_clone().expect("a log");
        let child = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn();
        let child = child.expect("java");
        fs::write(self.dir.join("pid"), child.id().to_string()).expect("a pid file");
        child
    }

    /// Starts the broker with its data and ports. It must not be running.
    pub(crate) fn start(&mut self) {
        assert!(self.child.is_none(), "the broker runs already");
        let mut command = self.java("kafka.Kafka");
        command.arg(self.dir.join("server.properties"));
        self.child = Some(self.spawn(&mut command));
    }

    /// Ends the broker by a signal, and waits until it has exited.
    pub(crate) async fn end(&mut self, how: Signal) {
        let Some(mut child) = self.child.take() else { return };
        signal(child.id(), how);
        exit_of(&mut child, Duration::from_mins(1)).await;
    }

    /// Stops or continues the broker process.
    pub(crate) fn signal(&self, what: Signal) {
        if let Some(child) = &self.child {
            signal(child.id(), what);
        }
    }

    pub(crate) fn runs(&self) -> bool {
        self.child.is_some()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for broker in &mut self.brokers {
            if let Some(mut child) = broker.child.take() {
                drop(child.kill());
                drop(child.wait());
            }
        }
        drop(fs::remove_dir_all(&self.dir));
    }
}
