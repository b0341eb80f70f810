//! Files that nobody would write: a configuration, or all that is wrong with it.

use super::parsed;
use crate::config::schema::REFERENCE;
use fuzzing::{Memory, hammer, texts};

#[test]
fn any_file_is_a_configuration_or_its_mistakes() {
    let mut corpus = texts("config", "\n---\n");
    corpus.push(REFERENCE.as_bytes().to_vec());
    // A mistake is told with its line, and a file may be nothing but mistakes.
    hammer(&corpus, Memory { base: 1 << 20, each: 2_000 }, |input| {
        let text = String::from_utf8_lossy(input);
        match parsed(&text) {
            Ok(config) => assert!(!config.pipelines.is_empty()),
            Err(findings) => assert!(!findings.to_string().is_empty()),
        }
    });
}
