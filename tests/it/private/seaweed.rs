//! An object storage to hurt: SeaweedFS with the API of S3. Tests look into it with curl, which signs its requests by
//! code of its own.

use super::program::Program;
use super::tls::make_certificates;
use super::{Signal, free_port};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// How long one request may take. Unit: seconds.
const REQUEST_MAX: &str = "60";

/// Who may log in, with the same secret: what each may do is in its name.
const LOGINS: [(&str, &[&str]); 4] = [
    ("admin", &["Admin", "Read", "Write", "List"]),
    ("relay", &["Read", "Write", "List"]),
    ("writer", &["Write"]),
    ("reader", &["Read", "List"]),
];

const SECRET: &str = "hush-hush-hush";

/// An object storage of the test's own, with bucket `shop`.
pub(crate) struct PrivateSeaweed {
    port: u16,
    tls_port: u16,
    /// Of its parts among each other: HTTP and gRPC of master, volume and filer, and gRPC of S3.
    inner: [u16; 7],
    program: Program,
}

impl PrivateSeaweed {
    pub(crate) async fn start() -> Self {
        let mut server = Self {
            port: free_port(),
            tls_port: free_port(),
            inner: std::array::from_fn(|_| free_port()),
            program: Program::new("seaweed"),
        };
        make_certificates(&server.program.dir.0);
        fs::create_dir(server.program.file("data")).expect("a directory for its data");
        let login = |(name, actions): &(&str, &[&str])| {
            json!({ "name": name, "actions": actions,
                    "credentials": [{ "accessKey": name, "secretKey": SECRET }] })
        };
        let logins: Vec<_> = LOGINS.iter().map(login).collect();
        let config = json!({ "identities": logins }).to_string();
        fs::write(server.program.file("s3.json"), config).expect("s3.json");
        fs::write(server.program.file("secret"), SECRET).expect("a secret");
        server.log_in("relay");
        server.restart().await;
        server.create_bucket("shop").await;
        server
    }

    /// Its URL.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its URL with TLS, by a name that its certificate has or, if not `right`, by its address.
    pub(crate) fn tls_endpoint(&self, right: bool) -> String {
        format!("https://{}:{}", if right { "localhost" } else { "127.0.0.1" }, self.tls_port)
    }

    /// The port that it listens on without TLS.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The authority of its certificate.
    pub(crate) fn ca(&self) -> PathBuf {
        self.program.file("ca.pem")
    }

    /// The files of the login that a relay has.
    pub(crate) fn login_keys(&self) -> String {
        let (access, secret) = (self.program.file("access"), self.program.file("secret"));
        format!(
            "access_key_file = \"{}\"\nsecret_key_file = \"{}\"\n",
            access.display(),
            secret.display()
        )
    }

    /// The secret of all logins.
    pub(crate) const SECRET: &'static str = SECRET;

    /// From now on the relay logs in with this name.
    pub(crate) fn log_in(&self, name: &str) {
        // By a rename: the relay reads the file for each request.
        let new = self.program.file("access.new");
        fs::write(&new, name).expect("a name");
        fs::rename(new, self.program.file("access")).expect("a rename");
    }

    /// kill -9.
    pub(crate) async fn kill(&mut self) {
        self.program.end(Signal::Kill).await;
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub(crate) fn freeze(&self) {
        self.program.freeze();
    }

    /// The end of [`Self::freeze`].
    pub(crate) fn thaw(&self) {
        self.program.thaw();
    }

    /// Starts it on the data and the port that it had, and waits until it stores objects. It must not be running.
    pub(crate) async fn restart(&mut self) {
        let mut command = self.program.command();
        let [master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3_grpc] = self.inner;
        command.args(["server", "-dir=data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]);
        command.args(["-s3", "-s3.config=s3.json", "-s3.autoCreateBucket=false", "-filer"]);
        command.args(["-s3.port.iceberg=0", "-s3.port.lance=0"]);
        // A volume that was written to when the server was killed is not written to again.
        command.args(["-master.volumeSizeLimitMB=512", "-volume.max=200"]);
        command.args(["-s3.cert.file=server.pem", "-s3.key.file=server.key"]);
        for (name, port) in [
            ("s3.port", self.port),
            ("s3.port.https", self.tls_port),
            ("s3.port.grpc", s3_grpc),
            ("master.port", master),
            ("master.port.grpc", master_grpc),
            ("volume.port", volume),
            ("volume.port.grpc", volume_grpc),
            ("filer.port", filer),
            ("filer.port.grpc", filer_grpc),
        ] {
            command.arg(format!("-{name}={port}"));
        }
        let endpoint = self.endpoint();
        // A bucket that only the wait uses: storing shows that all of its parts have found each other.
        let stores = || {
            let endpoint = endpoint.clone();
            async move {
                curl(&endpoint, "PUT", "started", &[]).await.ok();
                curl(&endpoint, "PUT", "started/object", &vec![b'x'; 100_000]).await.map(drop)
            }
        };
        self.program.start(command, stores).await;
    }

    pub(crate) async fn create_bucket(&self, name: &str) {
        curl(&self.endpoint(), "PUT", name, &[]).await.expect("a bucket");
    }

    /// Deletes a bucket with its objects.
    pub(crate) async fn delete_bucket(&self, name: &str) {
        for key in self.keys(name).await {
            self.delete(name, &key).await;
        }
        curl(&self.endpoint(), "DELETE", name, &[]).await.expect("no bucket");
    }

    /// The content of an object.
    ///
    /// # Errors
    /// There is no such object, or the storage does not answer.
    pub(crate) async fn get(&self, bucket: &str, key: &str) -> Result<Vec<u8>, String> {
        curl(&self.endpoint(), "GET", &format!("{bucket}/{key}"), &[]).await
    }

    /// What a reference leads to.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) async fn get_url(&self, url: &str) -> Result<Vec<u8>, String> {
        let (bucket, key) =
            url.strip_prefix("s3://").and_then(|place| place.split_once('/')).ok_or(url)?;
        self.get(bucket, key).await
    }

    /// Stores an object.
    pub(crate) async fn put(&self, bucket: &str, key: &str, content: &[u8]) {
        let path = format!("{bucket}/{key}");
        curl(&self.endpoint(), "PUT", &path, content).await.expect("an object");
    }

    pub(crate) async fn delete(&self, bucket: &str, key: &str) {
        let path = format!("{bucket}/{key}");
        curl(&self.endpoint(), "DELETE", &path, &[]).await.expect("no object");
    }

    /// The names of a bucket's objects; at most a thousand.
    pub(crate) async fn keys(&self, bucket: &str) -> Vec<String> {
        let list = curl(&self.endpoint(), "GET", &format!("{bucket}?list-type=2"), &[]).await;
        let list = String::from_utf8(list.expect("a list")).expect("XML");
        let key = |part: &str| part.split_once("</Key>").map(|(key, _)| key.to_owned());
        list.split("<Key>").skip(1).filter_map(key).collect()
    }

    /// Gives the bucket a rule that deletes objects below `prefix` after so many days.
    pub(crate) async fn expire(&self, bucket: &str, prefix: &str, days: u32) {
        let document = format!(
            "<LifecycleConfiguration><Rule><ID>cleanup</ID><Status>Enabled</Status><Filter><Prefix>{prefix}</Prefix>\
             </Filter><Expiration><Days>{days}</Days></Expiration></Rule></LifecycleConfiguration>"
        );
        let path = format!("{bucket}?lifecycle=");
        curl(&self.endpoint(), "PUT", &path, document.as_bytes()).await.expect("a rule");
    }
}

/// A digest, in base 16.
pub(crate) fn sha256(content: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(content) {
        write!(text, "{byte:02x}").expect("a String");
    }
    text
}

/// A request of `admin`.
async fn curl(endpoint: &str, method: &str, path: &str, body: &[u8]) -> Result<Vec<u8>, String> {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("body");
    fs::write(&file, body).expect("a body");
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail-with-body", "--request", method]);
    command.args(["--aws-sigv4", "aws:amz:us-east-1:s3", "--user", &format!("admin:{SECRET}")]);
    command.args(["--header", &format!("x-amz-content-sha256: {}", sha256(body))]);
    command.args(["--header", "content-type: application/octet-stream"]);
    if method == "PUT" {
        command.arg("--data-binary").arg(format!("@{}", file.display()));
    }
    command.args(["--max-time", REQUEST_MAX]).arg(format!("{endpoint}/{path}"));
    let run = tokio::task::spawn_blocking(move || command.output());
    let output = run.await.expect("an end").expect("curl");
    if output.status.success() {
        return Ok(output.stdout);
    }
    let [said, error] = [output.stdout, output.stderr];
    Err(format!("{}{}", String::from_utf8_lossy(&error), String::from_utf8_lossy(&said)))
}
