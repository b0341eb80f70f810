//! A PostgreSQL to hurt.

use super::{Dir, END_DEADLINE, START_DEADLINE, Signal, exit_of, free_port, signal};
use crate::await_that::await_or_dump;
use crate::server::{Client, Version};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The processes whose parent is `parent`.
fn children_of(parent: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc");
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // pid (name, which may hold spaces) state ppid …
            let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            after_name.split_whitespace().nth(1).and_then(|ppid| ppid.parse().ok()) == Some(parent)
        })
        .collect()
}

/// A PostgreSQL of the test's own. fsync is off unless the extra configuration says otherwise: a killed process loses
/// nothing by it, the kernel keeps what was written.
pub(crate) struct PrivatePostgres {
    pub(crate) version: Version,
    pub(crate) port: u16,
    dir: Dir,
    child: Option<Child>,
    owner: (u32, u32),
}

impl PrivatePostgres {
    /// Starts one with extra lines for `postgresql.conf`.
    pub(crate) async fn start(version: Version, extra_conf: &str) -> Self {
        Self::start_with(version, extra_conf, "").await
    }

    /// The same with lines to stand before the others in `pg_hba.conf` (which trusts everybody on this machine).
    pub(crate) async fn start_with(version: Version, extra_conf: &str, hba: &str) -> Self {
        let dir = Dir::create(&format!("pg{}", version.major()));
        let template = PathBuf::from(version.variable("TEMPLATE"));
        // The server's user owns the template, and will own the copy.
        let owner = fs::metadata(&template).expect("the template of initdb");
        let owner = (owner.uid(), owner.gid());
        let copied = Command::new("cp").arg("-a").arg(&template).arg(dir.0.join("data")).status();
        assert!(copied.is_ok_and(|status| status.success()), "a copy of {}", template.display());
        fs::create_dir(dir.0.join("s")).expect("a directory for the socket");
        give(&dir.0.join("s"), owner);
        give(&dir.0, owner);

        let mut server = Self { version, port: free_port(), dir, child: None, owner };
        let data = server.data();
        let rules = fs::read_to_string(data.join("pg_hba.conf")).expect("pg_hba.conf");
        fs::write(data.join("pg_hba.conf"), format!("{hba}\n{rules}")).expect("pg_hba.conf");
        let settings = fs::read_to_string(data.join("postgresql.conf")).expect("postgresql.conf");
        // Dynamic memory of a server that is killed for good goes with its files.
        let ours = format!(
            "port = {}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\n\
             wal_level = logical\nmax_prepared_transactions = 10\nshared_buffers = 32MB\n\
             fsync = off\nfull_page_writes = off\ndynamic_shared_memory_type = mmap\n{extra_conf}\n",
            server.port,
            server.socket().display(),
        );
        fs::write(data.join("postgresql.conf"), format!("{settings}\n{ours}")).expect("settings");
        server.restart().await;
        server
    }

    /// A copy of its files while it does not run, as a server of its own on another port, with extra settings: what a
    /// backup is, or the beginning of a standby. [`Self::restart`] starts it.
    pub(crate) fn cold_copy(&self, extra_conf: &str) -> Self {
        assert!(self.child.is_none(), "the server runs: its files would not fit together");
        let dir = Dir::create(&format!("pg{}", self.version.major()));
        let copied = Command::new("cp").arg("-a").arg(self.data()).arg(dir.0.join("data")).status();
        assert!(copied.is_ok_and(|status| status.success()), "a copy of {}", self.data().display());
        fs::create_dir(dir.0.join("s")).expect("a directory for the socket");
        give(&dir.0.join("s"), self.owner);
        give(&dir.0, self.owner);
        let (version, owner) = (self.version, self.owner);
        let copy = Self { version, port: free_port(), dir, child: None, owner };
        drop(fs::remove_file(copy.data().join("postmaster.pid")));
        let (port, socket) = (copy.port, copy.socket());
        copy.configure(&format!(
            "port = {port}\nunix_socket_directories = '{}'\n{extra_conf}",
            socket.display()
        ));
        copy
    }

    /// Adds lines to `postgresql.conf`; the last one of a setting counts. They hold from the next start, or
    /// [`Self::reload`].
    pub(crate) fn configure(&self, lines: &str) {
        let file = self.data().join("postgresql.conf");
        let settings = fs::read_to_string(&file).expect("postgresql.conf");
        fs::write(&file, format!("{settings}\n{lines}\n")).expect("settings");
    }

    /// Puts a file into its data directory: `standby.signal`, `recovery.signal`.
    pub(crate) fn place(&self, name: &str) {
        let file = self.data().join(name);
        fs::write(&file, "").unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        give(&file, self.owner);
    }

    /// Its data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.dir.0.join("data")
    }

    /// The directory of its unix socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.0.join("s")
    }

    /// User and group it runs as.
    pub(crate) fn owner(&self) -> (u32, u32) {
        self.owner
    }

    /// Gives a file to the server's user: keys of TLS must be its own.
    pub(crate) fn hand_over(&self, file: &Path) {
        give(file, self.owner);
    }

    /// A URI of a database on it.
    pub(crate) fn url_of(&self, database: &str) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The URI of its database `postgres`.
    pub(crate) fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The same over the unix socket, as key=value.
    pub(crate) fn socket_url(&self) -> String {
        let socket = self.socket();
        format!("host={} port={} user=postgres dbname=postgres", socket.display(), self.port)
    }

    /// The postmaster.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("a running server").id()
    }

    /// A connection to its database `postgres`.
    pub(crate) async fn connect(&self) -> Client {
        Client::connect(&self.url()).await.expect("a connection to the private server")
    }

    /// The last lines of its log.
    pub(crate) fn log(&self) -> String {
        self.dir.log()
    }

    /// kill -9 of every process of it at once.
    pub(crate) async fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        kill_all(child.id());
        exit_of(&mut child, END_DEADLINE).await;
    }

    /// `pg_ctl stop -m fast`; how long it took. Fails after `deadline`.
    pub(crate) async fn stop_fast(&mut self, deadline: Duration) -> Duration {
        let mut child = self.child.take().expect("a running server");
        let start = Instant::now();
        signal(child.id(), Signal::Int);
        exit_of(&mut child, deadline).await;
        start.elapsed()
    }

    /// `pg_ctl stop -m immediate`.
    pub(crate) async fn stop_immediately(&mut self) {
        let mut child = self.child.take().expect("a running server");
        signal(child.id(), Signal::Quit);
        exit_of(&mut child, END_DEADLINE).await;
    }

    /// SIGSTOP of every process of it: connections stay open and nothing answers.
    pub(crate) fn freeze(&self) {
        signal(self.pid(), Signal::Stop);
        for child in children_of(self.pid()) {
            signal(child, Signal::Stop);
        }
    }

    /// The end of [`Self::freeze`].
    pub(crate) fn thaw(&self) {
        for child in children_of(self.pid()) {
            signal(child, Signal::Cont);
        }
        signal(self.pid(), Signal::Cont);
    }

    /// Reads its configuration files again.
    pub(crate) fn reload(&self) {
        signal(self.pid(), Signal::Hup);
    }

    /// Starts it on the data and the port that it had, and waits until it answers. It must not be running.
    pub(crate) async fn restart(&mut self) {
        assert!(self.child.is_none(), "the server runs already");
        let program = Path::new(&self.version.variable("BIN")).join("postgres");
        let mut command = Command::new(program);
        command.arg("-D").arg(self.data()).current_dir(&self.dir.0);
        if fs::metadata("/proc/self").is_ok_and(|own| own.uid() != self.owner.0) {
            command.uid(self.owner.0).gid(self.owner.1);
        }
        let what = format!("a private PostgreSQL {}", self.version.major());
        let (url, dir) = (self.url(), &self.dir);
        let child = std::cell::RefCell::new(dir.spawn(&mut command));
        await_or_dump(
            &what,
            START_DEADLINE,
            || {
                // It refuses to start while a process of its last life still holds the shared memory.
                let ended = child.borrow_mut().try_wait();
                if ended.is_ok_and(|status| status.is_some()) {
                    *child.borrow_mut() = dir.spawn(&mut command);
                }
                Client::connect(&url)
            },
            || dir.log(),
        )
        .await;
        self.child = Some(child.into_inner());
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.thaw();
        }
        if let Some(mut child) = self.child.take() {
            // Not by kill -9: what the server shares in memory would stay, until the machine has room for no more.
            // It kills children that have not gone after 5 s by itself.
            signal(child.id(), Signal::Quit);
            drop(child.wait());
        }
    }
}

/// kill -9 of a postmaster and of every process of it.
fn kill_all(postmaster: u32) {
    // Frozen first: it must not start new processes while the old ones are being counted.
    signal(postmaster, Signal::Stop);
    let children = children_of(postmaster);
    signal(postmaster, Signal::Kill);
    for child in children {
        signal(child, Signal::Kill);
    }
}

fn give(path: &Path, (uid, gid): (u32, u32)) {
    let metadata = fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if metadata.uid() != uid {
        chown(path, Some(uid), Some(gid)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    if metadata.is_file() {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("permissions");
    }
}
