//! The fenced blocks of a document, in their order, and commands as a shell would see them.

use std::fs;
use std::path::Path;

/// One fenced block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    /// `docs/polling.md:42`: of the opening fence.
    pub(crate) place: String,
    /// The word behind the fence.
    pub(crate) language: String,
    pub(crate) text: String,
}

/// The repository.
pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All blocks of a document.
pub(crate) fn of(document: &str) -> Vec<Block> {
    let text = fs::read_to_string(root().join(document));
    parse(document, &text.unwrap_or_else(|error| panic!("{document}: {error}")))
}

fn parse(document: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (line, number) in text.lines().zip(1..) {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(language)) => {
                let (place, language) = (format!("{document}:{number}"), language.to_owned());
                open = Some(Block { place, language, text: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert_eq!(open, None, "{document} ends inside a block");
    blocks
}

/// The commands of a shell block: one a line, a backslash joins lines, comments are left out.
pub(super) fn commands(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(|line| {
        let code = line.split_once(" #").map_or(line, |(code, _)| code);
        if code.starts_with('#') { "" } else { code.trim() }
    });
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The value behind an option: `--topic order`.
pub(super) fn option<'c>(command: &'c str, name: &str) -> Option<&'c str> {
    let mut words = command.split_whitespace();
    words.find(|word| *word == name)?;
    words.next()
}

#[test]
fn blocks_are_found_with_place_language_and_text() {
    let found =
        parse("a.md", "x\n```sh\none \\\n  two   # why\n# all\nthree\n```\ny\n```text\nz\n```\n");
    assert_eq!(found.len(), 2);
    assert_eq!((&*found[0].place, &*found[0].language), ("a.md:2", "sh"));
    assert_eq!(commands(&found[0].text), ["one    two", "three"]);
    assert_eq!(option("kafka --topic order --partitions 8", "--topic"), Some("order"));
}
