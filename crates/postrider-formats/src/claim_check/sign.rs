//! Signatures of requests to object storage: AWS Signature Version 4, in the header `Authorization`. Source:
//! "Authenticating Requests: Using the Authorization Header" of the Amazon S3 API reference.

use super::digest::{PayloadDigest, hex};
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use sha2::Sha256;
use std::fmt;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// A login. `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) access_key: String,
    pub(super) secret_key: String,
    /// Of a login with an end.
    pub(super) session_token: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

/// What is signed of a request.
pub(super) struct Signing<'a> {
    pub(super) method: &'a str,
    /// Percent-encoded, from the first `/` on.
    pub(super) path: &'a str,
    /// Percent-encoded and sorted, each name with `=`; empty for none.
    pub(super) query: &'a str,
    /// Names in lower case with their values, with `host`, `x-amz-date` and `x-amz-content-sha256`; sorted here.
    pub(super) headers: Vec<(&'a str, &'a str)>,
    /// The digest of the body, in base 16.
    pub(super) body: &'a str,
    pub(super) region: &'a str,
}

/// A time as header `x-amz-date` has it.
pub(super) fn amz_date(time: Timestamp) -> String {
    time.strftime("%Y%m%dT%H%M%SZ").to_string()
}

impl Signing<'_> {
    /// The value of header `Authorization`. `date`: that of header `x-amz-date`.
    pub(super) fn authorization(mut self, credentials: &Credentials, date: &str) -> String {
        self.headers.sort_unstable();
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let mut request = format!("{}\n{}\n{}\n", self.method, self.path, self.query);
        for (name, value) in &self.headers {
            request.push_str(name);
            request.push(':');
            request.push_str(value.trim());
            request.push('\n');
        }
        request.push('\n');
        request.push_str(&names);
        request.push('\n');
        request.push_str(self.body);
        let day = date.get(..8).unwrap_or_default();
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let request = PayloadDigest::of(request.as_bytes()).hex();
        let text = format!("{ALGORITHM}\n{date}\n{scope}\n{request}");
        let secret = format!("AWS4{}", credentials.secret_key);
        let mut key = mac(secret.as_bytes(), day);
        for part in [self.region, "s3", "aws4_request"] {
            key = mac(&key, part);
        }
        let signature = hex(&mac(&key, &text));
        let access_key = &credentials.access_key;
        format!(
            "{ALGORITHM} Credential={access_key}/{scope},SignedHeaders={names},Signature={signature}"
        )
    }
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    // A key of any length is a key of HMAC.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    /// The signature of a request of the documentation's examples.
    fn signature(
        (method, path, query): (&str, &str, &str),
        more: &[(&str, &str)],
        body: &str,
    ) -> String {
        let credentials = Credentials {
            access_key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            session_token: None,
        };
        assert_eq!(format!("{credentials:?}"), "Credentials");
        let date = amz_date("2013-05-24T00:00:00Z".parse().unwrap());
        let mut headers = vec![
            ("x-amz-date", date.as_str()),
            ("host", "examplebucket.s3.amazonaws.com"),
            ("x-amz-content-sha256", body),
        ];
        headers.extend(more);
        let signing = Signing { method, path, query, headers, body, region: "us-east-1" };
        let header = signing.authorization(&credentials, &date);
        let start =
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,";
        assert!(header.starts_with(start), "{header}");
        header.rsplit_once('=').unwrap().1.to_owned()
    }

    #[test]
    fn signatures_are_those_of_the_documentation_of_aws() {
        assert_eq!(
            signature(("GET", "/test.txt", ""), &[("range", "bytes=0-9")], EMPTY),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        let more = [
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
        ];
        let body = PayloadDigest::of(b"Welcome to Amazon S3.").hex();
        assert_eq!(
            signature(("PUT", "/test%24file.text", ""), &more, &body),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
        );
        assert_eq!(
            signature(("GET", "/", "lifecycle="), &[], EMPTY),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        );
        assert_eq!(
            signature(("GET", "/", "max-keys=2&prefix=J"), &[], EMPTY),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
    }
}
