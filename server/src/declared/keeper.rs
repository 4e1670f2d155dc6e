//! The task that keeps probes as the files of a directory declare them.
//!
//! Reads the files at the start and after every change, and sends what [`super::plan`] finds to the
//! control thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kprobed_document::creation;
use kprobed_proto::v1;
use kprobed_proto::v1::DeclarationProblem;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::files::{self, Look};
use super::plan::{Claim, DeclaredProbes, Task, declared_probes, plan};
use super::watch::Watch;
use crate::health::{DeclarationState, Declarations, in_words};
use crate::rpc::changes::{declared_creation, declared_update};
use crate::rpc::{messages, spec};
use kprobed_control::auth::Caller;
use kprobed_control::error::{Error, Reason};
use kprobed_control::{AdoptRequest, Change, ControlHandle, Declared, Registry, RemoveRequest, Unit};
use kprobed_lang::definition::Code;
use kprobed_lang::model::ProbeName;
use kprobed_verdict::checker::{Checker, DefinitionText, named};

/// Files are read once nothing has changed for so long: tools write several files, and some write
/// one in pieces.
const STILL: Duration = Duration::from_millis(500);

/// Longest wait for the end of changes.
const STILL_AT_MOST: Duration = Duration::from_secs(10);

/// Time between two looks when no change is noticed: file systems of a network notice none that
/// another host makes.
const LOOK_INTERVAL: Duration = Duration::from_mins(1);

/// Time between two looks while a change failed: its cause may be gone.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Changes in one request to the control thread, which serves others in between.
const AT_ONCE: usize = 1000;

/// Keeps probes as files declare them.
#[derive(Debug)]
pub struct Keeper {
    /// The directory of the files.
    pub directory: PathBuf,
    /// Changes go here.
    pub control: ControlHandle,
    /// All probes that there are.
    pub registry: Arc<Registry>,
    /// Reads definitions.
    pub checker: Arc<Checker>,
    /// The result of each look is stored here.
    pub declarations: Arc<Declarations>,
}

/// The daemon is stopping.
struct Stopping;

/// Files and probes for which no change was needed.
type Settled = (Look, Vec<String>);

impl Keeper {
    /// Looks at once, and again after every change, until `stopping` is cancelled.
    pub async fn run(self, stopping: CancellationToken) {
        let mut settled = None;
        loop {
            // First, so that nothing that changes during the look is missed.
            let watch = Watch::new(&self.directory)
                .inspect_err(|error| tracing::warn!(%error, "cannot watch declarations: polling instead"))
                .ok();
            if self.look(&mut settled).await.is_err() {
                return;
            }
            let interval = if settled.is_some() { LOOK_INTERVAL } else { RETRY_INTERVAL };
            tokio::select! {
                () = stopping.cancelled() => return,
                () = sleep(interval) => {}
                () = change(watch.as_ref()) => {}
            }
        }
    }

    /// Reads the files and makes the missing changes. Stores the files and probes in `settled` if
    /// they agree.
    async fn look(&self, settled: &mut Option<Settled>) -> Result<(), Stopping> {
        let look = tokio::task::block_in_place(|| files::look(&self.directory));
        let probes: Vec<_> = self.registry.all().iter().map(|probe| messages::probe(probe)).collect();
        let seen = (look, probes.iter().map(|probe| format!("{} {}", probe.name, probe.etag)).collect());
        if settled.as_ref() == Some(&seen) {
            return Ok(());
        }
        let (look, _) = &seen;
        let mut state = DeclarationState { directory: self.directory.clone(), ..DeclarationState::default() };
        let mut done = 0;
        match look.clone() {
            Look::Unreadable(message) => {
                let message = format!("{message}; all declared probes stay as they are");
                state.problems.push(DeclarationProblem { message, ..DeclarationProblem::default() });
            }
            Look::Absent => {
                (done, state.problems) = self.bring_about(&DeclaredProbes::default(), &probes).await?;
            }
            Look::Files(files) => {
                state.files = Some(files.len());
                let mut declared = tokio::task::block_in_place(|| declared_probes(files));
                state.probes = declared.claims.len();
                state.problems = std::mem::take(&mut declared.problems);
                let (changes, problems) = self.bring_about(&declared, &probes).await?;
                done = changes;
                state.problems.extend(problems);
                state.problems.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
            }
        }
        // Changed probes are looked at once more: others may have changed them meanwhile.
        *settled = (done == 0 && state.problems.is_empty()).then_some(seen);
        let problems = state.problems.clone();
        if self.declarations.set(state) {
            for problem in &problems {
                tracing::warn!(problem = %in_words(problem), hint = problem.hint, "a declaration does not apply");
            }
        }
        Ok(())
    }

    /// Makes the missing changes. Returns how many were made, and the problems.
    async fn bring_about(
        &self,
        declared: &DeclaredProbes,
        probes: &[v1::Probe],
    ) -> Result<(usize, Vec<DeclarationProblem>), Stopping> {
        let (tasks, mut problems) =
            tokio::task::block_in_place(|| plan(declared, probes, |text, name| self.read(text, name)));
        let mut asked = Vec::with_capacity(tasks.len());
        for task in tasks {
            match Self::request(&task) {
                Ok(change) => asked.push((task, change)),
                Err(error) => problems.push(about(&task, &error)),
            }
        }
        let mut done = 0;
        while !asked.is_empty() {
            let rest = asked.split_off(asked.len().min(AT_ONCE));
            let (tasks, changes): (Vec<_>, Vec<_>) = std::mem::replace(&mut asked, rest).into_iter().unzip();
            let applied = self
                .control
                .apply(&Caller::daemon(), changes, Unit::Each)
                .await
                .map_err(|_stopping| Stopping)?;
            for (task, outcome) in tasks.iter().zip(applied.outcomes) {
                match outcome {
                    Ok(_) => {
                        done += 1;
                        tracing::info!(probe = task.name(), file = task.file(), "applied declaration");
                    }
                    Err(error) if error.reason == Reason::STOPPING => return Err(Stopping),
                    Err(error) if self.take_back(task, &error).await? => done += 1,
                    Err(error) => problems.push(about(task, &error)),
                }
            }
        }
        Ok((done, problems))
    }

    /// Takes back an event that a daemon has left whose database was lost, if that is why a probe
    /// cannot be made. Whether it is a probe now; what else the file says of it is done with the
    /// next look.
    async fn take_back(&self, task: &Task, error: &Error) -> Result<bool, Stopping> {
        let Task::Create(claim) = task else { return Ok(false) };
        let Ok(Change::Create(request)) = Self::request(task) else { return Ok(false) };
        let is_foreign = error.reason == Reason::FOREIGN_EVENT_EXISTS
            && error.value("rule") == Some(Code::SameProbe.name());
        let Some(Ok(name)) = error.value("probe").filter(|_| is_foreign).map(str::parse) else {
            return Ok(false);
        };
        let request = AdoptRequest {
            name,
            enabled: None,
            filter: None,
            labels: request.labels,
            declared: Some(Declared { definition: request.definition, metadata: request.metadata }),
            request: None,
            validate_only: false,
        };
        match self.control.adopt(&Caller::daemon(), request).await {
            Ok(_) => {
                tracing::info!(probe = %claim.name, file = claim.file, "adopted event of an earlier run");
                Ok(true)
            }
            Err(error) if error.reason == Reason::STOPPING => Err(Stopping),
            Err(error) => {
                tracing::debug!(probe = %claim.name, %error, "cannot adopt event");
                Ok(false)
            }
        }
    }

    /// A definition as fields, with the name of its probe. It can leave the name out, and cannot be of another probe.
    fn read(&self, definition: &str, name: &ProbeName) -> Result<v1::ProbeSpec, Error> {
        let text = DefinitionText::new(definition);
        let read = self.checker.probe(&text)?;
        let read = named(read, self.checker.reading(&text).dialect, name).map_err(|found| {
            let message = format!("the definition is of `{found}`, and the document of `{name}`");
            let hint = format!("write `{name}` in it, or leave the name out");
            Error::bad_argument("definition", message).fix(&hint)
        })?;
        Ok(spec::write(&read))
    }

    /// The change of a task, or why there is none and what to do.
    fn request(task: &Task) -> Result<Change, Error> {
        match task {
            Task::Create(Claim { entry, file, .. }) => {
                declared_creation(creation(&entry.document), file).map(Change::Create)
            }
            Task::Update(Claim { file, .. }, request) => {
                declared_update((**request).clone(), file).map(Change::Update)
            }
            Task::Remove { name, etag, .. } => Ok(Change::Remove(RemoveRequest {
                name: name.clone(),
                take_over: true,
                etag: Some(etag.clone()),
                request: None,
                validate_only: false,
            })),
        }
    }
}

impl Task {
    fn name(&self) -> &str {
        match self {
            Self::Create(claim) | Self::Update(claim, _) => &claim.entry.document.name,
            Self::Remove { name, .. } => name,
        }
    }

    fn file(&self) -> &str {
        match self {
            Self::Create(Claim { file, .. })
            | Self::Update(Claim { file, .. }, _)
            | Self::Remove { file, .. } => file,
        }
    }
}

/// Waits for a change, and then until changes stop. Never returns without a watch.
async fn change(watch: Option<&Watch>) {
    let Some(watch) = watch else { return std::future::pending().await };
    if watch.changed().await.is_err() {
        return sleep(LOOK_INTERVAL).await;
    }
    let begun = Instant::now();
    while begun.elapsed() < STILL_AT_MOST
        && timeout(STILL, watch.changed()).await.is_ok_and(|more| more.is_ok())
    {}
}

/// The problem that prevents a task.
fn about(task: &Task, error: &Error) -> DeclarationProblem {
    let (message, hint) = (&error.message, error.hint().to_owned());
    let (claim, what) = match task {
        Task::Create(claim) => (claim, "is not made"),
        Task::Update(claim, _) => (claim, "stays as it was"),
        Task::Remove { name, file, .. } => {
            return DeclarationProblem {
                file: file.clone(),
                probe: name.clone(),
                message: format!("`{name}` is declared no more, and cannot be removed: {message}"),
                hint,
                ..DeclarationProblem::default()
            };
        }
    };
    claim.problem(claim.entry.definition_place, format!("`{}` {what}: {message}", claim.name), hint)
}
