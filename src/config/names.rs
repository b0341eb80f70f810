//! Names of keys: how they are written, and which was meant.

/// The nearest of `words`, where one is near enough to have been meant.
pub(super) fn nearest<'w>(text: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    // `password` is meant to be `password_file`: a word without its last part counts too, a little less.
    let stem =
        |word: &'w str| word.rsplit_once('_').map(|(stem, _)| stem).filter(|stem| stem.len() > 4);
    let distance = |word: &'w str| {
        let short = stem(word).map(|stem| strsim::damerau_levenshtein(text, stem) + 1);
        let long = strsim::damerau_levenshtein(text, word);
        (short.map_or(long, |short| short.min(long)), word)
    };
    let (distance, word) = words.map(distance).min()?;
    (distance <= 1 + word.len().max(text.len()) / 4).then_some(word)
}

/// A key as TOML would have it.
pub fn quoted(key: &str) -> String {
    let bare = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if !key.is_empty() && key.bytes().all(bare) { key.to_owned() } else { format!("{key:?}") }
}
