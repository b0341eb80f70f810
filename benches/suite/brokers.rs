//! NATS, RabbitMQ and Redis that the bench starts by itself: on loopback, with their data beside those of the running
//! servers, so that all have the same disk. Each is ended, and its data deleted, when the value is dropped.

use crate::consumers::{self, BrokerLogin, ConsumedPlace};
use crate::contender::free_port;
use crate::servers::{Servers, wait_for};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The stream of JetStream.
pub(crate) const STREAM: &str = "BENCH";
/// User and password of the relay, the reader and the rivals.
pub(crate) const USER: &str = "bench";
const PASSWORD: &str = "bench";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BrokerKind {
    Nats,
    RabbitMq,
    Redis,
}

impl BrokerKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Nats => "nats",
            Self::RabbitMq => "rabbitmq",
            Self::Redis => "redis",
        }
    }
}

pub(crate) struct BrokerProcess {
    kind: BrokerKind,
    pub(crate) login: BrokerLogin,
    /// The server's program.
    pub(crate) program: PathBuf,
    dir: PathBuf,
    child: Child,
}

impl BrokerProcess {
    pub(crate) fn start(servers: &Servers, kind: BrokerKind) -> Self {
        let program = servers.program(&format!("{}_SERVER", kind.name().to_uppercase()));
        let dir = servers.run.join(format!("bench-{}-{}", kind.name(), std::process::id()));
        fs::create_dir_all(dir.join("data")).expect("a directory");
        let password = dir.join("password");
        fs::write(&password, format!("{PASSWORD}\n")).expect("a password");
        fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).expect("its rights");
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let login = BrokerLogin { address, user: USER.to_owned(), password: PASSWORD.to_owned() };
        let mut command = Command::new(&program);
        let text = match kind {
            BrokerKind::Nats => {
                command.arg("-c").arg(dir.join("config"));
                format!(
                    "listen: {address}\njetstream {{ store_dir: \"{}\" }}\n\
                     authorization {{ user: \"{USER}\", password: \"{PASSWORD}\" }}\n",
                    dir.join("data").display()
                )
            }
            BrokerKind::Redis => {
                command.arg(dir.join("config"));
                format!(
                    "bind 127.0.0.1\nport {}\ndir {}\nappendonly yes\nappendfsync always\nsave \"\"\n\
                     auto-aof-rewrite-percentage 0\n\
                     user default off ~* &* +@all\nuser {USER} on >{PASSWORD} ~* &* +@all\n",
                    address.port(),
                    dir.join("data").display()
                )
            }
            BrokerKind::RabbitMq => {
                command.arg(&dir).args([free_port().to_string(), free_port().to_string()]);
                fs::write(dir.join("enabled_plugins"), "[].\n").expect("plugins");
                format!(
                    "listeners.tcp.1 = {address}\ndefault_user = {USER}\ndefault_pass = {PASSWORD}\n\
                     disk_free_limit.absolute = 50MB\n"
                )
            }
        };
        let name = if kind == BrokerKind::RabbitMq { "rabbitmq.conf" } else { "config" };
        fs::write(dir.join(name), text).expect("a configuration");
        let log = fs::File::create(dir.join("log")).expect("a log");
        command.stdin(Stdio::null()).stderr(log.try_clone().expect("a log")).stdout(log);
        let child = command.current_dir(&dir).process_group(0).spawn().expect("a server");
        let mut broker = Self { kind, login, program, dir, child };
        let place = broker.place("", false);
        wait_for(kind.name(), Duration::from_millis(50), || {
            let ended = broker.child.try_wait().expect("a child");
            assert!(ended.is_none(), "{} ended: {ended:?}\n{}", kind.name(), broker.log());
            consumers::log_in(&broker.login, &place).ok()
        });
        broker
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Where a consumer finds what is published to `topic`.
    pub(crate) fn place(&self, topic: &str, is_stream: bool) -> ConsumedPlace {
        match self.kind {
            BrokerKind::Nats => ConsumedPlace::Nats(format!("{STREAM}_{topic}")),
            BrokerKind::Redis => ConsumedPlace::Redis(topic.to_owned()),
            BrokerKind::RabbitMq => ConsumedPlace::RabbitMq { queue: topic.to_owned(), is_stream },
        }
    }

    /// The lines below `[pipelines.SLOT.sink]`, with the destination that `postrider setup` creates.
    pub(crate) fn sink(&self, topic: &str, queue_type: &str) -> String {
        let (address, kind) = (self.login.address, self.kind.name());
        let table = format!(
            "kind = \"{kind}\"\n[pipelines.SLOT.sink.{kind}]\npassword_file = \"{}\"\n",
            self.dir.join("password").display()
        );
        match self.kind {
            BrokerKind::Nats => format!(
                "{table}url = \"nats://{address}\"\nstream = \"{STREAM}_{topic}\"\nuser = \"{USER}\"\n\
                 [pipelines.SLOT.sink.nats.create]\nsubjects = \"{topic}\"\n"
            ),
            BrokerKind::Redis => {
                format!("{table}servers = \"{address}\"\nusername = \"{USER}\"\n")
            }
            BrokerKind::RabbitMq => format!(
                "{table}url = \"amqp://{USER}@{address}\"\n\
                 [pipelines.SLOT.sink.rabbitmq.create]\nqueue_type = \"{queue_type}\"\n"
            ),
        }
    }

    /// Erlang's daemon serves this node only, and does not end with it.
    fn end_epmd(&self) {
        let text = fs::read_to_string(self.dir.join("epmd-pid")).unwrap_or_default();
        let Ok(pid) = text.trim().parse::<u32>() else { return };
        // The number could belong to another process by now.
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if command.windows(4).any(|word| word == b"epmd") {
            drop(Command::new("kill").args(["-9", &pid.to_string()]).status());
        }
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if self.kind == BrokerKind::RabbitMq {
            self.end_epmd();
        }
        drop(fs::remove_dir_all(&self.dir));
    }
}
