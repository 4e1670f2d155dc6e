//! `kprobectl check --kernel`: verdicts on definitions for kernels that do not run, from their packages or images.
//!
//! Owns which definitions are judged for which kernels, and the exit code. Asks no daemon.

use std::path::{Path, PathBuf};

use clap::Args;
use kprobed_host::kernel::ImageError;
use kprobed_lang::definition::{CutDefinition, Cutter};
use kprobed_verdict::offline::OfflineKernel;

use super::input::{self, DefinitionFile};
use super::{Exit, Failure, documents};
use crate::output::{ImageVerdict, JunitReport, Output, PlacedDefinition};

/// The kernels.
#[derive(Clone, Debug, Default, Args)]
#[group(skip)]
pub(crate) struct Images {
    /// Judge for a kernel that need not run: a Debian package, a directory with one kernel, a `vmlinuz` or a `vmlinux`.
    /// Several are judged one by one, and compared with the first
    #[arg(long, value_name = "PATH", conflicts_with_all = ["explain", "strict"])]
    kernel: Vec<PathBuf>,
    /// The same for two kernels: show only the definitions for which they differ
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], conflicts_with_all = ["explain", "strict"])]
    diff: Vec<PathBuf>,
    /// Also write the verdicts of `--kernel` or `--diff` to this file, as JUnit XML
    #[arg(long, value_name = "FILE", requires = "images")]
    junit: Option<PathBuf>,
}

impl Images {
    /// Whether there is one: no daemon is asked.
    pub(crate) fn are_given(&self) -> bool {
        !self.kernel.is_empty() || !self.diff.is_empty()
    }
}

/// Judges all definitions for all kernels. The first kernel is the one that they are made for.
pub(super) async fn run(
    images: Images,
    words: &[String],
    file: Option<&DefinitionFile>,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let Images { kernel, diff, junit } = images;
    let only_differences = !diff.is_empty();
    let definitions = definitions(words, file).await?;
    let opened = tokio::task::spawn_blocking(move || {
        let paths = if only_differences { diff } else { kernel };
        paths.iter().map(|path| OfflineKernel::open(path).map_err(|why| unusable(path, &why))).collect()
    });
    let kernels: Vec<OfflineKernel> = opened.await.unwrap_or_else(|_panicked| {
        Err(Failure::refused("reading the kernels has failed", "report it as a bug"))
    })?;
    let is_alone = definitions.len() == 1 && kernels.len() == 1;
    let mut report = JunitReport::new(&kernels.iter().map(OfflineKernel::release).collect::<Vec<_>>());
    let mut exit = Exit::Success;
    for definition in &definitions {
        // Ctrl-C is heard between two of them.
        tokio::task::yield_now().await;
        let verdicts = judge(&kernels, &definition.text)?;
        let differs = differs(&verdicts);
        let is_good = verdicts.iter().all(|one| one.verdict.is_good());
        if if only_differences { differs } else { !is_good } {
            exit = Exit::Refused;
        }
        if differs || !only_differences {
            report.add(&definition.text, &verdicts);
            output.image_verdicts(definition, &verdicts, is_alone)?;
        }
    }
    if only_differences && exit == Exit::Success {
        let releases: Vec<_> = kernels.iter().map(OfflineKernel::release).collect();
        output.note(&format!("no difference between {}", releases.join(" and ")));
    }
    if let Some(path) = junit {
        std::fs::write(&path, report.render()).map_err(|why| {
            Failure::new(Exit::Usage, format!("cannot write `{}`: {why}", path.display()), [])
        })?;
    }
    Ok(exit)
}

/// A kernel that cannot be read, with its path once.
fn unusable(path: &Path, why: &ImageError) -> Failure {
    let message = match why {
        ImageError::Read(_) => why.to_string(),
        other => format!("`{}`: {other}", path.display()),
    };
    Failure::new(Exit::Usage, message, why.hint().map(str::to_owned))
}

/// The definitions: that of the command line, the lines of a file, or documents.
async fn definitions(
    words: &[String],
    file: Option<&DefinitionFile>,
) -> Result<Vec<PlacedDefinition>, Failure> {
    let Some(path) = file.map(DefinitionFile::path) else {
        let text = input::definition(words).await?;
        return Ok(vec![PlacedDefinition { place: None, text }]);
    };
    if documents::are_in(path) {
        let declared = documents::read(&[path.to_owned()], false).await?;
        let placed = |one: documents::Declared| {
            let place = (Some(one.file), one.entry.definition_place.line as u64);
            PlacedDefinition { place: Some(place), text: one.entry.document.definition }
        };
        return Ok(declared.into_iter().map(placed).collect());
    }
    let mut cutter = Cutter::default();
    cutter.push(input::content(path).await?.as_bytes());
    let mut cut: Vec<CutDefinition> = std::iter::from_fn(|| cutter.next_complete()).collect();
    cut.extend(cutter.finish());
    if cut.is_empty() {
        return Err(Failure::new(Exit::Usage, format!("`{}` has no definition", path.display()), []));
    }
    Ok(cut
        .into_iter()
        .map(|one| PlacedDefinition { place: Some((None, one.line)), text: one.text })
        .collect())
}

/// The verdicts on one definition, in the order of the kernels.
fn judge(kernels: &[OfflineKernel], definition: &str) -> Result<Vec<ImageVerdict>, Failure> {
    let made_for = kernels.first().and_then(|kernel| kernel.meaning(definition));
    let judge = |(index, kernel): (usize, &OfflineKernel)| {
        let mut verdict = kernel.judge(definition).map_err(|why| {
            let message = format!("there are no verdicts for {}: {why}", kernel.release());
            Failure::new(Exit::Usage, message, [])
        })?;
        if let (1.., Some(before)) = (index, &made_for) {
            verdict.change = kernel.change(before, definition);
        }
        Ok(ImageVerdict { release: kernel.release().to_owned(), verdict })
    };
    kernels.iter().enumerate().map(judge).collect()
}

/// Whether a kernel judges otherwise than the first one, or gives the definition another meaning.
fn differs(verdicts: &[ImageVerdict]) -> bool {
    let judged = |one: &ImageVerdict| (one.verdict.outcome, one.verdict.answer.rule.clone());
    let Some((first, others)) = verdicts.split_first() else { return false };
    others.iter().any(|other| other.verdict.change.is_some() || judged(other) != judged(first))
}
