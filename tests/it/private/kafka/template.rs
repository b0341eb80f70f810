//! What brokers begin with, made once: formatted storage, and the classes of one that ran before them. A test's broker
//! is there in half the time.

use super::{PrivateKafka, cluster_id, java};
use crate::await_that::await_that;
use crate::private::{Dir, START_DEADLINE, Signal, exit_of, free_port, signal};
use crate::server::servers;
use std::fs;
use std::path::{Path, PathBuf};
use tokio::sync::OnceCell;

/// The cluster of the storage below; each broker's own takes its place.
const CLUSTER: &str = "templateTEMPLATEtempla";

/// The classes, for `-XX:SharedArchiveFile`: beside the jars they are of. Java passes over one that does not fit.
pub(crate) fn archive() -> PathBuf {
    PathBuf::from(format!("{}.jsa", servers().get("KAFKA_LIB")))
}

/// Makes the archive where there is none.
pub(crate) async fn need_archive() {
    static MADE: OnceCell<()> = OnceCell::const_new();
    MADE.get_or_init(|| async {
        if !archive().exists() {
            record().await;
        }
    })
    .await;
}

/// A broker runs, and leaves its classes when it ends.
async fn record() {
    let dir = Dir::create("classes");
    let port = free_port();
    fs::create_dir(dir.0.join("data")).expect("a directory");
    let properties = PrivateKafka::properties(&dir.0, port, free_port(), "");
    fs::write(dir.0.join("server.properties"), properties).expect("server.properties");
    storage().await.copy(&dir.0.join("data"), &cluster_id());
    let classes = dir.0.join("classes.jsa");
    let mut command = java(&dir.0);
    command.arg(format!("-XX:ArchiveClassesAtExit={}", classes.display())).arg("kafka.Kafka");
    let mut broker = dir.spawn(command.arg("server.properties"));
    await_that("a broker's classes", START_DEADLINE, || super::look(format!("127.0.0.1:{port}")))
        .await;
    signal(broker.id(), Signal::Term);
    exit_of(&mut broker, START_DEADLINE).await;
    // Without them brokers start all the same. Another process may have been first.
    let own = archive().with_extension(format!("{}.part", std::process::id()));
    if fs::copy(&classes, &own).is_ok() {
        drop(fs::rename(own, archive()));
    }
}

/// Files of a data directory that was formatted, with what is in them.
pub(super) struct Storage(Vec<(PathBuf, Vec<u8>)>);

impl Storage {
    /// Into a directory of a broker of this cluster.
    pub(super) fn copy(&self, data: &Path, cluster: &str) {
        for (name, bytes) in &self.0 {
            let file = data.join(name);
            fs::create_dir_all(file.parent().expect("a directory")).expect("a directory");
            let text = std::str::from_utf8(bytes).map(|text| text.replace(CLUSTER, cluster));
            let bytes = text.map_or_else(|_| bytes.clone(), String::into_bytes);
            fs::write(file, bytes).expect("a broker's storage");
        }
    }
}

/// The storage of broker 1, formatted once.
pub(super) async fn storage() -> &'static Storage {
    static STORAGE: OnceCell<Storage> = OnceCell::const_new();
    STORAGE.get_or_init(format).await
}

async fn format() -> Storage {
    let dir = Dir::create("format");
    let properties = PrivateKafka::properties(&dir.0, free_port(), free_port(), "");
    fs::write(dir.0.join("server.properties"), properties).expect("server.properties");
    super::format(&dir, CLUSTER).await;
    let data = dir.0.join("data");
    let mut files = Vec::new();
    let mut left = vec![data.clone()];
    while let Some(at) = left.pop() {
        for entry in fs::read_dir(&at).expect("formatted storage") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                left.push(path);
            } else {
                let name = path.strip_prefix(&data).expect("below").to_owned();
                files.push((name, fs::read(&path).expect("a file")));
            }
        }
    }
    Storage(files)
}
