//! The one door to the process environment, so that everything behind it can be tested without it.

/// Looks a variable up. Tests pass a closure of their own; the command passes [`process`].
pub type Env<'e> = &'e dyn Fn(&str) -> Option<String>;

/// The process environment. A value that is not UTF-8 counts as unset.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub fn process(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
