//! A PgBouncer of a test's own, in front of one of the shared servers: the real one of Debian (1.18).

use super::{Signal, exit_of, free_port, signal};
use crate::await_that::{SOON, await_or_dump};
use crate::server::{Client, Version};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// PgBouncer before a server. Clients log in as `postgres`, without a password.
pub(crate) struct PrivatePooler {
    child: Child,
    port: u16,
    dir: TempDir,
}

impl PrivatePooler {
    /// `lines`: further lines of its configuration.
    pub(crate) async fn start(version: Version, lines: &str) -> Self {
        let dir = TempDir::new().expect("a directory");
        let (port, server) = (free_port(), version.variable("PORT"));
        let users = dir.path().join("users");
        let config = format!(
            "[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\n{lines}",
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
        let owner = fs::metadata(version.variable("DATA")).expect("the server's data");
        if fs::metadata("/proc/self").is_ok_and(|own| own.uid() != owner.uid()) {
            // It does not run as root.
            command.uid(owner.uid()).gid(owner.gid());
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().expect("pgbouncer; scripts/test installs it");
        let pooler = Self { child, port, dir };
        let url = pooler.url("postgres");
        await_or_dump("PgBouncer", SOON, || Client::connect(&url), || pooler.log()).await;
        pooler
    }

    /// Before PostgreSQL 17: gives each transaction the next free of so many sessions.
    pub(crate) async fn in_transaction_mode(sessions: usize) -> Self {
        let lines = format!("pool_mode = transaction\ndefault_pool_size = {sessions}\n");
        Self::start(Version::Pg17, &lines).await
    }

    /// A database of the server, through the pooler.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub(crate) async fn stop(mut self) {
        signal(self.child.id(), Signal::Kill);
        exit_of(&mut self.child, SOON).await;
    }
}

impl Drop for PrivatePooler {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
