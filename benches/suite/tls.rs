//! TLS on the bench's PostgreSQL, for as long as a workload needs it.

use crate::servers::{Database, Servers, wait_for};
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::process::Command;
use std::time::Duration;

/// TLS, which is switched off when the value is dropped.
pub(crate) struct Tls(Database);

impl Tls {
    /// Switches TLS on with a self-signed certificate in the server's data directory.
    pub(crate) fn switch_on(servers: &Servers) -> Self {
        let arguments = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=bench \
            -keyout server.key -out server.crt";
        let mut openssl = Command::new("openssl");
        openssl.args(arguments.split_whitespace()).current_dir(&servers.data);
        let output = openssl.output().expect("openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // PostgreSQL accepts a key only if its own user owns it.
        let owner = fs::metadata(&servers.data).expect("a data directory");
        for file in ["server.key", "server.crt"] {
            let file = servers.data.join(file);
            chown(&file, Some(owner.uid()), Some(owner.gid())).expect("a change of owner");
        }
        let tls = Self(Database::open(servers, "postgres"));
        tls.set("alter system set ssl = on", "on");
        tls
    }

    fn set(&self, sql: &str, value: &str) {
        self.0.run(sql);
        self.0.text("select pg_reload_conf()");
        wait_for("the server's TLS", Duration::from_millis(20), || {
            (self.0.text("show ssl") == value).then_some(())
        });
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        self.set("alter system reset ssl", "off");
    }
}
