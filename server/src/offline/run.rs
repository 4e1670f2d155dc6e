//! The command `kprobed check`: checks every definition for every kernel, and prints the verdicts.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::definitions::definitions;
use super::document::Document;
use super::junit::{self, Suite};
use super::kernel::{OfflineKernel, OfflineVerdict};
use super::text;
use kprobed_control::error;
use kprobed_host::kernel::ImageError;

/// What to check, and for which kernels.
#[derive(Clone, Debug)]
pub struct Request {
    /// Packages, directories and images. The definitions are taken to be made for the first one.
    pub kernels: Vec<PathBuf>,
    /// Whether only definitions count for which a kernel differs from the first one.
    pub only_differences: bool,
    /// One definition, or none.
    pub definition: Option<String>,
    /// A file of definitions, or a directory of such files.
    pub file: Option<PathBuf>,
    /// How to print.
    pub format: Format,
}

/// How verdicts are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object for each definition and kernel, one on each line.
    Json,
    /// One JUnit document.
    Junit,
}

/// Error of the whole command.
#[derive(Debug, Error)]
pub enum RunError {
    /// A kernel could not be read.
    #[error("{}", of_kernel(path, source))]
    Kernel {
        /// What was given.
        path: PathBuf,
        /// Why.
        source: ImageError,
    },
    /// The kernel has no kprobe events.
    #[error("the kernel {release} takes no probes: {source}")]
    Control {
        /// The kernel.
        release: String,
        /// Why.
        source: Box<error::Error>,
    },
    /// The file of definitions could not be read.
    #[error("cannot read `{path}`: {source}", path = path.display())]
    Definitions {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not a document.
    #[error("`{path}`:{line}: {message}", path = path.display())]
    Document {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
        /// What to write instead; empty if the message says it.
        hint: String,
    },
    /// Neither a definition nor a file with one.
    #[error("there is no definition to check")]
    NoDefinition,
    /// The verdicts could not be printed.
    #[error("cannot print the verdicts: {0}")]
    Print(io::Error),
}

/// What is wrong with a kernel, with its path once.
fn of_kernel(path: &Path, source: &ImageError) -> String {
    match source {
        ImageError::Read { .. } => source.to_string(),
        other => format!("`{}`: {other}", path.display()),
    }
}

impl RunError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Kernel { source, .. } => source.hint().map(str::to_owned),
            Self::NoDefinition => Some("give a definition, or a file with `-f`".to_owned()),
            Self::Document { hint, .. } => Some(hint.clone()).filter(|hint| !hint.is_empty()),
            Self::Control { .. } | Self::Definitions { .. } | Self::Print(_) => None,
        }
    }
}

/// Judges all definitions for all kernels and prints the verdicts. Says whether every kernel is
/// known to take all of them, and that they record there what they do on the first one; with
/// `only_differences`, whether no kernel differs from the first one.
///
/// # Errors
/// See [`RunError`].
pub fn run(request: &Request, output: &mut dyn Write) -> Result<bool, RunError> {
    let mut kernels = Vec::new();
    for path in &request.kernels {
        let opened = OfflineKernel::open(path);
        kernels.push(opened.map_err(|source| RunError::Kernel { path: path.clone(), source })?);
    }
    let asked = definitions(request)?;
    let mut all_good = true;
    let mut suites: Vec<Suite<'_>> =
        kernels.iter().map(|kernel| Suite { release: kernel.release(), cases: Vec::new() }).collect();
    for one in &asked {
        let verdicts = judge(&kernels, &one.text)?;
        let differs = differs(&verdicts);
        all_good &= if request.only_differences {
            !differs
        } else {
            verdicts.iter().all(|(_, verdict)| verdict.is_good())
        };
        if request.only_differences && !differs {
            continue;
        }
        let alone = asked.len() == 1 && kernels.len() == 1;
        let printed = match request.format {
            Format::Text => text::render(one, &verdicts, alone),
            Format::Json => verdicts
                .iter()
                .map(|(release, verdict)| Document::new(one, release, verdict).line())
                .collect(),
            Format::Junit => {
                for (suite, (_, verdict)) in suites.iter_mut().zip(verdicts) {
                    suite.cases.push((&one.text, verdict));
                }
                continue;
            }
        };
        output.write_all(printed.as_bytes()).map_err(RunError::Print)?;
    }
    if request.format == Format::Junit {
        output.write_all(junit::render(&suites).as_bytes()).map_err(RunError::Print)?;
    }
    output.flush().map_err(RunError::Print)?;
    Ok(all_good)
}

/// The verdicts on one definition, each after the release of its kernel. What it means on the first
/// kernel is what it is to mean on the others.
fn judge<'a>(
    kernels: &'a [OfflineKernel],
    definition: &str,
) -> Result<Vec<(&'a str, OfflineVerdict)>, RunError> {
    let made_for = kernels.first().and_then(|kernel| kernel.meaning(definition));
    let mut verdicts = Vec::with_capacity(kernels.len());
    for (index, kernel) in kernels.iter().enumerate() {
        let mut verdict = kernel.judge(definition).map_err(|error| RunError::Control {
            release: kernel.release().to_owned(),
            source: Box::new(error),
        })?;
        if let (1.., Some(before)) = (index, &made_for) {
            verdict.change = kernel.change(before, definition);
        }
        verdicts.push((kernel.release(), verdict));
    }
    Ok(verdicts)
}

/// Whether a kernel judges otherwise than the first one, or gives the definition another meaning.
fn differs(verdicts: &[(&str, OfflineVerdict)]) -> bool {
    let judged = |verdict: &OfflineVerdict| (verdict.outcome, verdict.answer.rule.clone());
    let Some(((_, first), others)) = verdicts.split_first() else { return false };
    others.iter().any(|(_, other)| other.change.is_some() || judged(other) != judged(first))
}
