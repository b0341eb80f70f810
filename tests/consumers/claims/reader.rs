//! A reader of claim checks in Rust. docs/formats/claim-check.md shows it, and `claim_check_readers` runs it.
#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own, without Postrider's environment"
)]

// docs: begin
// Reads a payload by its claim check: claim_reader URL SIZE SHA256. Writes the payload to standard output.

use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::error::Error;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// The payload of a record: its value, or what its headers refer to. `get` reads an object: the call of the client of
/// S3 that the program has, such as `get_object` of the crate `aws-sdk-s3`.
fn payload(
    get: impl FnOnce(&str, &str) -> Result<Vec<u8>, Box<dyn Error>>,
    value: Vec<u8>,
    headers: &HashMap<String, String>,
) -> Result<Vec<u8>, Box<dyn Error>> {
    let Some(url) = headers.get("claim-check-url") else { return Ok(value) };
    let place = url.strip_prefix("s3://").and_then(|place| place.split_once('/'));
    let (bucket, key) = place.ok_or("not a URL of S3")?;
    let content = get(bucket, key)?;
    if headers.get("claim-check-size") != Some(&content.len().to_string()) {
        return Err("the object has another size than the payload".into());
    }
    let digest = Sha256::digest(&content);
    let digest = digest.iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    if headers.get("claim-check-sha256") != Some(&digest) {
        return Err("the object has another digest than the payload".into());
    }
    Ok(content)
}

/// Reads an object by curl 7.75 or later, which signs the request.
fn curl(bucket: &str, key: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let variable = |name| std::env::var(name).map_err(|error| format!("{name}: {error}"));
    let endpoint = variable("AWS_ENDPOINT_URL")?;
    let (login, secret) = (variable("AWS_ACCESS_KEY_ID")?, variable("AWS_SECRET_ACCESS_KEY")?);
    let signed = format!("aws:amz:{}:s3", variable("AWS_REGION")?);
    // Standard input, because every user of the machine can see the arguments.
    let mut child = Command::new("curl")
        .args(["--silent", "--show-error", "--fail", "--aws-sigv4", &signed, "--config", "-"])
        .arg(format!("{endpoint}/{bucket}/{key}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut config = child.stdin.take().ok_or("no standard input")?;
    writeln!(config, "user = \"{login}:{secret}\"")?;
    drop(config);
    let output = child.wait_with_output()?;
    if output.status.success() { Ok(output.stdout) } else { Err("curl has failed".into()) }
}

fn main() -> Result<(), Box<dyn Error>> {
    let names = ["claim-check-url", "claim-check-size", "claim-check-sha256"];
    let headers = names.into_iter().map(str::to_owned).zip(std::env::args().skip(1)).collect();
    std::io::stdout().write_all(&payload(curl, Vec::new(), &headers)?)?;
    Ok(())
}
