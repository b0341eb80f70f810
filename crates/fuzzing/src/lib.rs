//! Mutation fuzzing for tests: inputs of a small corpus are mutated at random, and the memory and time of each are
//! measured.
//!
//! Tests of each parser check that no input makes it panic, loop, or take more memory than allowed for the input's
//! size. The corpus is in `tests/fuzz`; `tests/wal` has messages that servers sent. Runs with the same seed are equal;
//! `POSTRIDER_FUZZ_SEED` and `POSTRIDER_FUZZ_BYTES` set the seed and the amount of input.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "the crate is only for tests")]

mod meter;

use fastrand::Rng;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Amount of input of a test. Unit: bytes.
const BYTES: usize = 1 << 20;
/// Maximum size of an input, unless the corpus has a longer one. Unit: bytes.
const INPUT_BYTES: usize = 64 << 10;
/// An input that takes longer counts as an endless loop. Inputs are small, but the machine may be busy.
const SLOW: Duration = Duration::from_secs(10);

/// Boundary values of lengths, counts and signs.
const EDGES: [u32; 10] =
    [0, 1, 4, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF];

/// Maximum memory for an input.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Bytes for any input.
    pub base: usize,
    /// Bytes for each byte of input.
    pub each: usize,
}

/// The corpus of a target; each line is an input.
pub fn lines(target: &str) -> Vec<Vec<u8>> {
    texts(target, "\n")
}

/// The corpus of a target whose inputs are separated by `between`.
pub fn texts(target: &str, between: &str) -> Vec<Vec<u8>> {
    let text = fs::read_to_string(root().join("tests/fuzz").join(format!("{target}.txt"))).unwrap();
    text.split(between).map(|input| input.as_bytes().to_vec()).collect()
}

/// The corpus of a target; each line is an input in hexadecimal. Spaces are ignored.
pub fn hex(target: &str) -> Vec<Vec<u8>> {
    let lines = lines(target).into_iter();
    lines.map(|line| unhex(&String::from_utf8(line).unwrap().replace(' ', ""))).collect()
}

/// The recorded messages of servers of a version, in order; one list for each recording.
pub fn recordings(version: &str) -> Vec<Vec<Vec<u8>>> {
    let mut files: Vec<PathBuf> = fs::read_dir(root().join("tests/wal").join(version))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "wal"))
        .collect();
    files.sort();
    let read = |file: PathBuf| {
        let text = fs::read_to_string(file).unwrap();
        // Position, transaction, message.
        text.lines().filter_map(|line| Some(unhex(line.split(' ').nth(2)?))).collect()
    };
    files.into_iter().map(read).collect()
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)?.try_into().ok()).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn setting(name: &str) -> Option<u64> {
    std::env::var_os(name)?.into_string().ok()?.parse().ok()
}

/// Calls `read` with each input of the corpus, and then with mutated inputs, up to the amount of input of a test.
///
/// # Panics
/// If an input takes more memory than allowed, or too long.
pub fn hammer(corpus: &[Vec<u8>], memory: Memory, mut read: impl FnMut(&[u8])) {
    let mut rng = Rng::with_seed(setting("POSTRIDER_FUZZ_SEED").unwrap_or(1));
    let limit =
        setting("POSTRIDER_FUZZ_BYTES").map_or(BYTES, |bytes| usize::try_from(bytes).unwrap());
    let mut spent = 0;
    let mut inputs = 0;
    while spent < limit {
        let input = corpus.get(inputs).map_or_else(|| mutated(&mut rng, corpus), Clone::clone);
        (inputs, spent) = (inputs + 1, spent + input.len() + 1);
        let shown_on_panic = ShownOnPanic(&input);
        let began = Instant::now();
        let most = meter::most(|| read(&input));
        let allowed = memory.base + memory.each * input.len();
        assert!(most <= allowed, "{most} bytes of memory, {allowed} allowed");
        assert!(began.elapsed() < SLOW, "took {:?}", began.elapsed());
        drop(shown_on_panic);
    }
    assert!(inputs > corpus.len(), "the limit is for more than the corpus");
}

/// Prints the input if the test panics.
struct ShownOnPanic<'a>(&'a [u8]);

impl Drop for ShownOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut digits = String::new();
            for byte in self.0 {
                write!(digits, "{byte:02x}").unwrap();
            }
            println!("the input, as text: {}", String::from_utf8_lossy(self.0));
            println!("the input, for tests/fuzz: {digits}");
        }
    }
}

fn mutated(rng: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let longest = corpus.iter().map(Vec::len).max().unwrap_or(0).max(INPUT_BYTES);
    let mut input = rng.choice(corpus).cloned().unwrap_or_default();
    for _ in 0..=rng.usize(..5) {
        mutate(rng, corpus, &mut input);
    }
    input.truncate(longest);
    input
}

fn mutate(rng: &mut Rng, corpus: &[Vec<u8>], input: &mut Vec<u8>) {
    let at = rng.usize(..=input.len());
    let end = rng.usize(at..=input.len().min(at + 64));
    match rng.u32(..10) {
        0 => input.truncate(at),
        1 => drop(input.drain(at..end)),
        2 => {
            let piece = input[at..end].to_vec();
            for _ in 0..=rng.usize(..4) {
                input.splice(at..at, piece.iter().copied());
            }
        }
        3 => input.insert(at, rng.u8(..)),
        4 => {
            let other = rng.choice(corpus).cloned().unwrap_or_default();
            let from = rng.usize(..=other.len());
            input.splice(at..end, other[from..].iter().copied());
        }
        5 => {
            let edge = rng.choice(EDGES).unwrap_or(0).to_be_bytes();
            let bytes = &edge[rng.usize(..4)..];
            let end = (at + bytes.len()).min(input.len());
            input.splice(at..end, bytes.iter().copied());
        }
        6 => {
            let words = [
                "\u{0}", "\"", "'", "{", "}", "{{", "${", "[", "]", "=", "\\", "%", "@", "é",
                "\u{202e}",
            ];
            let word = rng.choice(words).unwrap_or_default();
            input.splice(at..at, word.bytes());
        }
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << rng.u32(..8);
            }
        }
    }
}

#[test]
fn allocated_memory_is_counted() {
    assert_eq!(meter::most(|| ()), 0);
    let most = meter::most(|| {
        drop(vec![0_u8; 5_000]);
        drop(vec![0_u8; 3_000]);
    });
    assert_eq!(most, 5_000, "freed memory does not count twice");
}

#[test]
#[should_panic(expected = "bytes of memory")]
fn an_input_that_takes_too_much_fails() {
    hammer(&[vec![9; 30]], Memory { base: 0, each: 2 }, |input| drop(vec![0; input.len() * 3]));
}
