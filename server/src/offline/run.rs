//! Judges every definition for every kernel, and prints the verdicts.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::document::Document;
use super::junit::{self, Suite};
use super::kernel::{OfflineKernel, Outcome};
use super::text;
use crate::control::ControlError;
use crate::definition::{CutDefinition, Cutter};
use crate::kernel::ImageError;

/// What to check, and for which kernels.
#[derive(Clone, Debug)]
pub struct Request {
    /// Packages, directories and images.
    pub kernels: Vec<PathBuf>,
    /// One definition, or none.
    pub definition: Option<String>,
    /// A file of definitions.
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

/// Why there are no verdicts.
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
        source: Box<ControlError>,
    },
    /// The file of definitions could not be read.
    #[error("cannot read `{path}`: {source}", path = path.display())]
    Definitions {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
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
            Self::Control { .. } | Self::Definitions { .. } | Self::Print(_) => None,
        }
    }
}

/// A definition, and the line of the file that it begins on.
struct Asked {
    line: Option<u64>,
    text: String,
}

/// Judges all definitions for all kernels and prints the verdicts. Says whether every kernel is known to take all of them.
///
/// # Errors
/// See [`RunError`].
pub fn run(request: &Request, output: &mut dyn Write) -> Result<bool, RunError> {
    let asked = definitions(request)?;
    let mut kernels = Vec::new();
    for path in &request.kernels {
        let opened = OfflineKernel::open(path);
        kernels.push(opened.map_err(|source| RunError::Kernel { path: path.clone(), source })?);
    }
    let mut all_accepted = true;
    let mut suites: Vec<Suite<'_>> =
        kernels.iter().map(|kernel| Suite { release: kernel.release(), cases: Vec::new() }).collect();
    for one in &asked {
        let mut verdicts = Vec::new();
        for kernel in &kernels {
            let verdict = kernel.judge(&one.text).map_err(|error| RunError::Control {
                release: kernel.release().to_owned(),
                source: Box::new(error),
            })?;
            all_accepted &= verdict.outcome == Outcome::Accepted;
            verdicts.push((kernel.release(), verdict));
        }
        let alone = asked.len() == 1 && kernels.len() == 1;
        let printed = match request.format {
            Format::Text => text::render(one.line, &one.text, &verdicts, alone),
            Format::Json => verdicts
                .iter()
                .map(|(release, verdict)| Document::new(one.line, &one.text, release, verdict).line())
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
    Ok(all_accepted)
}

fn definitions(request: &Request) -> Result<Vec<Asked>, RunError> {
    let mut asked: Vec<Asked> =
        request.definition.iter().map(|text| Asked { line: None, text: text.clone() }).collect();
    if let Some(path) = &request.file {
        asked.extend(of_file(path)?);
    }
    if asked.is_empty() { Err(RunError::NoDefinition) } else { Ok(asked) }
}

fn of_file(path: &Path) -> Result<Vec<Asked>, RunError> {
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::stdin().lock(), &mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    let bytes = bytes.map_err(|source| RunError::Definitions { path: path.to_owned(), source })?;
    let mut cutter = Cutter::default();
    cutter.push(&bytes);
    let mut cut: Vec<CutDefinition> = std::iter::from_fn(|| cutter.next_complete()).collect();
    cut.extend(cutter.finish());
    Ok(cut.into_iter().map(|one| Asked { line: Some(one.line), text: one.text }).collect())
}
