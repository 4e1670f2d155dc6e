//! Debug information for commands: definitions by source lines, as lines of the kernel.
//!
//! Owns the options, and everything that opens, fetches or stores debug information; `kprobed_lines` reads it. Debug
//! information is known by build id: it is looked for once for each build among the hosts of a command.

mod debuginfod;
mod file;
mod search;

pub(crate) use file::{DebugFile, DebugFiles, Sources, keep};
pub(crate) use search::{Build, Places};

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use kprobed_client::api::{KernelBuild, ListFunctionsRequest};
use kprobed_client::{Client, Error};
use kprobed_lines::{DebugInfo, Definition, Line, LinesError, MadeOfLine, Place, Target, Visible};
use tokio::sync::Mutex;

/// Options for source lines, and what is known of them by now.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Lines {
    /// Debug information for definitions by source lines: a vmlinux, a module, a package (.deb), or an index that
    /// `kprobectl lines --make-index` has made; may be given more than once [default: found by build id]
    #[arg(long, global = true, value_name = "FILE")]
    debug: Vec<PathBuf>,
    /// Directory with the sources of the kernel, for texts of lines; may be given more than once
    #[arg(long, global = true, value_name = "DIR")]
    source: Vec<PathBuf>,
    /// The lines of definitions, by build and text: hosts of one build share them.
    #[arg(skip)]
    known: Arc<Mutex<HashMap<(String, String), Made>>>,
}

/// What a definition has become.
type Made = Result<Vec<KernelLine>, LinesError>;

/// A definition by source, at one of its places.
#[derive(Clone, Debug)]
pub(crate) struct KernelLine {
    /// What the kernel reads, and behind it the source line as a comment.
    pub(crate) definition: String,
    /// The same without the comment.
    pub(crate) text: String,
    /// What is to be said about it.
    pub(crate) remarks: Vec<String>,
}

/// Why a definition by source has no line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineProblem {
    /// The host did not answer.
    #[error(transparent)]
    Host(#[from] Error),
    /// Its debug information has no answer, or there is none.
    #[error(transparent)]
    Lines(#[from] LinesError),
}

impl Lines {
    /// The lines of a definition on a host, one for each of its places.
    pub(crate) async fn of(
        &self,
        client: &Client,
        definition: &Definition,
    ) -> Result<Vec<KernelLine>, LineProblem> {
        let build = self.build(client, definition.module.as_deref(), &definition.target).await?;
        let key = (build.id.clone(), format!("{definition:?}"));
        // The others wait meanwhile: those of the same build need what is found.
        let mut known = self.known.lock().await;
        if let Some(lines) = known.get(&key) {
            return Ok(lines.clone()?);
        }
        let made = self.made(&build, definition.clone()).await;
        known.insert(key, made.clone());
        Ok(made?)
    }

    /// The line of a probe that was made of a source line, on the build that its host has now.
    pub(crate) async fn port(
        &self,
        client: &Client,
        made: MadeOfLine,
        (group, event): (&str, &str),
    ) -> Result<KernelLine, LineProblem> {
        let build = self.build_of_host(client, made.module.clone()).await?;
        let (group, event) = (Some(group.to_owned()), Some(event.to_owned()));
        let build_id = build.id.clone();
        let asked = self.ask(&build, move |info, sources| {
            let texts = |path: &str| sources.text(path);
            let ported = info.port(&made, &texts)?;
            let definition = Definition { group, event, ..ported.definition };
            let line = info.line(&definition, &ported.place, 0)?;
            let origin = info.origin(&definition, &ported.place, &ported.places, &build_id, &texts);
            let mut line = kernel_line(line, &ported.place, &origin.to_string())?;
            line.remarks.insert(0, format!("it was {}", made.origin.in_words()));
            line.remarks.insert(1, format!("it is {}", origin.in_words()));
            line.remarks.insert(2, format!("carried by {}", ported.carried.text()));
            Ok(line)
        });
        Ok(asked.await?)
    }

    /// The lines of a definition without a host, by the files of `--debug` alone.
    pub(crate) async fn offline(&self, definition: Definition) -> Made {
        let build = self.build_of_file(definition.module.as_deref())?;
        self.made(&build, definition).await
    }

    async fn made(&self, build: &Build, definition: Definition) -> Made {
        let build_id = build.id.clone();
        self.ask(build, move |info, sources| kernel_lines(info, &definition, sources, &build_id)).await
    }

    /// Asks the debug information of a build, on a thread that may block.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        build: &Build,
        question: impl FnOnce(&DebugInfo<'_>, &Sources) -> Result<T, LinesError> + Send + 'static,
    ) -> Result<T, LinesError> {
        let places = Places::of_user();
        let files = search::find(build, &self.debug, &places).await?;
        let sources = Sources::new(&self.source);
        let asked = tokio::task::spawn_blocking(move || files.with(|info| question(info, &sources)));
        asked.await.map_err(|broken| LinesError::new(format!("reading debug information ended: {broken}")))?
    }

    /// Whether files of debug information are given.
    pub(crate) fn has_files(&self) -> bool {
        !self.debug.is_empty()
    }

    /// The build that the first fitting file of `--debug` is of.
    pub(crate) fn build_of_file(&self, module: Option<&str>) -> Result<Build, LinesError> {
        for path in &self.debug {
            if file::is_package(path) {
                return Err(LinesError::new(format!("the package `{}` is read for a host", path.display()))
                    .hint("make an index of it first: `kprobectl lines --make-index PACKAGE`"));
            }
            let identity = DebugFile::open(path)?.identity()?;
            if !identity.is_split && (module.is_none() || identity.module.as_deref() == module) {
                return Ok(Build {
                    release: String::new(),
                    id: hex::encode(identity.build_id),
                    module: identity.module,
                });
            }
        }
        let what = module.map_or_else(|| "a kernel".to_owned(), |module| format!("the module `{module}`"));
        Err(LinesError::new(format!("no file of `--debug` is one of {what}")))
    }

    /// The build of the kernel or the module that has a place on a host.
    pub(crate) async fn build(
        &self,
        client: &Client,
        module: Option<&str>,
        target: &Target,
    ) -> Result<Build, LineProblem> {
        let module = match (module, target) {
            (Some(module), _) => Some(module.to_owned()),
            (None, Target::Function { name, .. }) => module_of(client, name).await?,
            // The only file that is given says it.
            (None, _) => match self.debug.as_slice() {
                [only] if !file::is_package(only) => DebugFile::open(only)?.identity()?.module,
                _ => None,
            },
        };
        self.build_of_host(client, module).await
    }

    /// The build of the kernel of a host, or of a module that is loaded there.
    async fn build_of_host(&self, client: &Client, module: Option<String>) -> Result<Build, LineProblem> {
        let host = client.host_builds(module.iter().cloned().collect()).await?;
        let release = host.kernel_release;
        let found: Option<KernelBuild> = match &module {
            None => host.kernel_build,
            Some(module) => host.module_builds.into_iter().find(|build| build.name == *module),
        };
        match found {
            Some(found) if !found.build_id.is_empty() => Ok(Build { release, id: found.build_id, module }),
            _ => Err(LineProblem::Lines(match module {
                Some(module) => LinesError::new(format!(
                    "the module `{module}` is not loaded, or has no build id by which its debug information is known"
                )),
                None => LinesError::new(format!(
                    "the kernel {release} tells no build id, by which its debug information is known"
                )),
            })),
        }
    }
}

/// The module of a function that only modules have. A host that does not say it leaves the kernel itself.
async fn module_of(client: &Client, name: &str) -> Result<Option<String>, LinesError> {
    // `?` makes it a pattern for the whole name: without one it is a part that many names can have.
    let Some(end) = name.char_indices().next_back() else { return Ok(None) };
    let request = ListFunctionsRequest { pattern: format!("{}?", &name[..end.0]), ..Default::default() };
    let Ok(page) = client.list_functions_page(request).await else { return Ok(None) };
    let mut modules: Vec<_> = page
        .functions
        .into_iter()
        .filter(|function| function.name == name)
        .map(|function| function.module)
        .collect();
    modules.sort();
    modules.dedup();
    match modules.as_slice() {
        [only] if !only.is_empty() => Ok(Some(only.clone())),
        [first, second, ..] if !first.is_empty() => {
            Err(LinesError::new(format!("several modules have a function `{name}`"))
                .hint(format!("write `{first}:{name}` or `{second}:{name}`")))
        }
        _ => Ok(None),
    }
}

/// The lines of a definition at all of its places, with the source lines that they are of.
fn kernel_lines(
    info: &DebugInfo<'_>,
    definition: &Definition,
    sources: &Sources,
    build_id: &str,
) -> Result<Vec<KernelLine>, LinesError> {
    let texts = &|path: &str| sources.text(path);
    let places = info.places(&definition.target, texts)?;
    let mut lines: Vec<KernelLine> = Vec::with_capacity(places.len());
    let mut refused = Vec::new();
    for (number, place) in (0..).zip(&places) {
        let origin = || info.origin(definition, place, &places, build_id, texts).to_string();
        match info.line(definition, place, number).and_then(|line| kernel_line(line, place, &origin())) {
            Ok(line) => lines.push(line),
            Err(error) => refused.push((place, error)),
        }
    }
    // A place without one of the variables is left out, and that is said.
    let first = refused.first().map(|(place, error)| (*place, error.clone()));
    match (lines.last_mut(), first) {
        (_, None) => Ok(lines),
        (None, Some((_, error))) => Err(error),
        (Some(last), Some((place, error))) => {
            let (missing, all) = (refused.len(), places.len());
            last.remarks
                .push(format!("{missing} of {all} places are left out; at `{}`: {error}", place.text));
            Ok(lines)
        }
    }
}

/// The line of one place, with its origin behind it.
fn kernel_line(line: Line, place: &Place, origin: &str) -> Result<KernelLine, LinesError> {
    if let Some(error) = line.objection() {
        return Err(error);
    }
    let mut remarks: Vec<_> = line.left_out.iter().map(left_out).collect();
    remarks.extend(shared(place));
    Ok(KernelLine { definition: format!("{} {origin}", line.text), text: line.text, remarks })
}

fn left_out(visible: &Visible) -> String {
    let why = visible.argument.as_ref().err().map(ToString::to_string).unwrap_or_default();
    format!("`{}` is left out: {why}", visible.name)
}

/// That a probe at this place is one for other lines too.
pub(crate) fn shared(place: &Place) -> Option<String> {
    let others: Vec<_> = place.shares.iter().map(|other| format!("{}:{}", other.file, other.line)).collect();
    let line = format!("{}:{}", place.source.file, place.source.line);
    (!others.is_empty()).then(|| format!("{line} begins at the same instruction as {}", others.join(", ")))
}
