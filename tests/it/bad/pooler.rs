//! A pooler between the relay and PostgreSQL: the real PgBouncer of Debian (1.18), which does not pass replication on.
//! It refuses startup parameters that it does not know, `replication` among them, or is told to leave them out.

use super::SOON;
use crate::answers::{Answer, answer};
use crate::await_that::await_or_dump;
use crate::pipeline::Pipeline;
use crate::private::{Signal, exit_of, free_port, signal};
use crate::relay::Relay;
use crate::server::{Client, Version};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// What the relay asks for at its login and PgBouncer does not know.
const UNKNOWN: &str = "replication,options,IntervalStyle,extra_float_digits,bytea_output,search_path,\
    client_min_messages,statement_timeout,lock_timeout,idle_session_timeout,\
    idle_in_transaction_session_timeout,wal_sender_timeout";

/// PgBouncer before PostgreSQL 17.
struct Pooler {
    child: Child,
    port: u16,
    dir: TempDir,
}

impl Pooler {
    /// `ignored`: startup parameters that it leaves out.
    async fn start(ignored: &str) -> Self {
        let dir = TempDir::new().expect("a directory");
        let (port, server) = (free_port(), Version::Pg17.variable("PORT"));
        let users = dir.path().join("users");
        let config = format!(
            "[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\n\
             ignore_startup_parameters = {ignored}\n",
            users.display()
        );
        fs::write(&users, "\"postgres\" \"\"\n").expect("its users");
        fs::write(dir.path().join("ini"), config).expect("its configuration");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("permissions");
        let log = File::create(dir.path().join("log")).expect("a log");
        // Debian puts it where only root looks.
        let debian = Path::new("/usr/sbin/pgbouncer");
        let program = if debian.exists() { debian } else { Path::new("pgbouncer") };
        let mut command = Command::new(program);
        command.arg(dir.path().join("ini"));
        let owner = fs::metadata(Version::Pg17.variable("DATA")).expect("the server's data");
        if fs::metadata("/proc/self").is_ok_and(|own| own.uid() != owner.uid()) {
            // It does not run as root.
            command.uid(owner.uid()).gid(owner.gid());
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().expect("pgbouncer; scripts/test installs it");
        let pooler = Self { child, port, dir };
        let url = pooler.url("dbname=postgres");
        await_or_dump("PgBouncer", SOON, || Client::connect(&url), || pooler.log()).await;
        pooler
    }

    fn url(&self, parameters: &str) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/?sslmode=disable&{parameters}", self.port)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    async fn stop(mut self) {
        signal(self.child.id(), Signal::Kill);
        exit_of(&mut self.child, SOON).await;
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test]
async fn pooler_in_between_is_told_and_nothing_is_lost() {
    let pipeline = Pipeline::shared(Version::Pg17, "pooler").await;
    pipeline.insert(10).await;
    let before = pipeline.confirmed_lsn().await;
    let database = pipeline.url.split("dbname=").nth(1).expect("a database");
    for (input, ignored, word) in [
        ("PgBouncer in between", "", "unsupported startup parameter"),
        ("PgBouncer in between, with ignore_startup_parameters", UNKNOWN, "IDENTIFY_SYSTEM"),
    ] {
        let pooler = Pooler::start(ignored).await;
        let url = pooler.url(&format!("dbname={database}"));
        let relay = Relay::spawn(&pipeline.config.replace(&pipeline.url, &url));
        let status = relay.await_state("source_down", SOON).await;
        let seen = &status["pipelines"][0];
        assert!(seen["reason"].as_str().unwrap_or_default().contains(word), "{status}");
        assert!(
            seen["hint"].as_str().unwrap_or_default().contains("PostgreSQL itself"),
            "{status}"
        );
        answer(input, &pipeline, Answer::waits(&status));
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        pooler.stop().await;
    }
    assert_eq!(pipeline.confirmed_lsn().await, before);
    super::arrives(&pipeline, 10).await;
}
