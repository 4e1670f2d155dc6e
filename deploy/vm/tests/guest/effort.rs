//! Effort of the tests that draw or count: little in each run of CI, much before a release.
//!
//! `KPROBED_VM_EFFORT` is `ci` or `full`, `ci` when it is not set. The assertions are the same.

use std::env;
use std::sync::OnceLock;

use anyhow::{Context as _, Result, bail};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effort {
    Ci,
    Full,
}

/// One of these, by what was requested.
pub(crate) fn pick<T>(ci: T, full: T) -> T {
    if is_full() { full } else { ci }
}

/// Whether it is that of a release.
pub(crate) fn is_full() -> bool {
    effort() == Effort::Full
}

/// Whether the variable says something that is known.
pub(crate) fn check() -> Result<()> {
    parse(env::var("KPROBED_VM_EFFORT").ok().as_deref()).map(drop)
}

/// Numbers that a variable has, with commas between, or the usual ones.
pub(crate) fn numbers(variable: &str, usual: &[usize]) -> Result<Vec<usize>> {
    let Ok(text) = env::var(variable) else { return Ok(usual.to_vec()) };
    let number = |text: &str| text.trim().parse().with_context(|| format!("{variable}: {text}"));
    text.split(',').map(number).collect()
}

fn effort() -> Effort {
    static EFFORT: OnceLock<Effort> = OnceLock::new();
    // What is not known was refused at the start.
    *EFFORT.get_or_init(|| parse(env::var("KPROBED_VM_EFFORT").ok().as_deref()).unwrap_or(Effort::Ci))
}

fn parse(text: Option<&str>) -> Result<Effort> {
    match text {
        None | Some("" | "ci") => Ok(Effort::Ci),
        Some("full") => Ok(Effort::Full),
        Some(other) => bail!("KPROBED_VM_EFFORT is `ci` or `full`, not `{other}`"),
    }
}
