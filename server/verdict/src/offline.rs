//! Verdicts for a kernel that does not run, from its image, without daemon, root or guest.
//!
//! Owns what only a running kernel knows: what boot made of some code, and the contents of modules. Never
//! accepts such a probe.
//!
//! Not known here, and not repeated in each verdict: names that a module has as well, which kernels since 6.7 refuse as
//! ambiguous; probes and livepatches of a host; and switches on its command line.

use std::path::Path;
use std::sync::Arc;

use kprobed_proto::v1;

use crate::checker::{Against, CheckError, CheckOutcome, Checker, DefinitionText};
use crate::meaning::Meaning;
use crate::message::{self, Detail};
use crate::validate::{BootDependence, typed};
use kprobed_host::kernel::{FactsCache, ImageError, KernelFacts, KernelImage};
use kprobed_lang::definition::{Definition, Diagnostic, Features, Place};

/// A kernel that does not run.
#[derive(Debug)]
pub struct OfflineKernel {
    release: String,
    facts: Arc<FactsCache>,
    checker: Checker,
}

/// What is known of a definition without the kernel running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel accepts it.
    Accepted,
    /// The kernel refuses it.
    Refused,
    /// That depends on what boot makes of the code there.
    DependsOnBoot,
    /// It is about a module, and modules are not looked at.
    OfModule,
}

impl Outcome {
    /// As one word, for people and programs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::DependsOnBoot => "uncertain",
            Self::OfModule => "unknown",
        }
    }
}

/// The verdict on a definition for one kernel.
#[derive(Clone, Debug)]
pub struct OfflineVerdict {
    /// What is known.
    pub outcome: Outcome,
    /// The answer that the daemon would give in that kernel, as far as the image shows: if it
    /// depends on boot, the likeliest.
    pub answer: v1::CheckProbeResponse,
    /// What of it depends on boot: also if all possibilities refuse the place, for different
    /// reasons.
    pub boot: Option<BootDependence>,
    /// Why it is not known; empty when it is.
    pub remark: String,
    /// The function's prototype in C, if the kernel has types and they include the function.
    pub prototype: Option<String>,
    /// Differences to its meaning on the kernel that it was made for. Absent if nothing differs, or
    /// that was not asked.
    pub change: Option<v1::MeaningChange>,
}

impl OfflineVerdict {
    /// Whether the kernel takes the definition, and gives it the meaning that it was made with.
    pub fn is_good(&self) -> bool {
        self.outcome == Outcome::Accepted && self.change.is_none()
    }

    /// What it comes to, as one word.
    pub fn word(&self) -> &'static str {
        if self.outcome == Outcome::Accepted && self.change.is_some() {
            return "changed";
        }
        self.outcome.word()
    }
}

impl OfflineKernel {
    /// Reads the kernel of a Debian package, of a directory, or of a file (`vmlinuz` or `vmlinux`).
    ///
    /// # Errors
    /// See [`ImageError`].
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let image = KernelImage::open(path)?;
        let features = Features::from_readme(&image.readme);
        let (release, version) = (image.release.clone(), image.version.clone());
        let has_kprobe_events = image.readme.contains("kprobe_events");
        let facts = KernelFacts::of_image(image)?;
        let features = features.with_types(facts.types.available()).with_version(&release, &version);
        let facts = Arc::new(FactsCache::of_image(facts));
        let checker = Checker::new(features, Arc::clone(&facts));
        let checker = if has_kprobe_events { checker } else { checker.without_kprobe_events() };
        Ok(Self { release, facts, checker })
    }

    /// `uname -r`.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Judges one definition.
    ///
    /// # Errors
    /// When the kernel has no kprobe events. A text that is no definition has a verdict too.
    pub fn judge(&self, text: &str) -> Result<OfflineVerdict, CheckError> {
        let text = Arc::new(DefinitionText::new(text));
        let mut facts = self.checker.recent_facts();
        let (answer, checked) = match self.checker.check_text(&text, &mut facts) {
            Ok(checked) => {
                (message::judged(&self.checker, &checked, Detail::Listing, None, None), Some(checked))
            }
            Err(CheckError::Definition { diagnostics, .. }) => (self.unjudged(&text, &diagnostics)?, None),
            Err(error) => return Err(error),
        };
        let accepted = answer.verdict() == v1::Verdict::Accepted;
        let of_place = checked
            .as_ref()
            .filter(|outcome| matches!(outcome.against(None), None | Some(Against::Place(_))));
        let boot = of_place.and_then(CheckOutcome::boot_dependence);
        let module = checked.as_ref().and_then(|outcome| outcome.report.absent_module.as_deref());
        let (outcome, remark) = match (&boot, module) {
            (_, Some(module)) if accepted => {
                let remark = format!("`{module}` is a module, and modules are not looked at");
                (Outcome::OfModule, remark)
            }
            (Some(found), _) if found.some_accept && found.some_refuse => {
                (Outcome::DependsOnBoot, boot_remark(found, &answer.location))
            }
            _ => (if accepted { Outcome::Accepted } else { Outcome::Refused }, String::new()),
        };
        let prototype = checked.as_ref().and_then(|outcome| self.prototype(&outcome.definition.place));
        Ok(OfflineVerdict { outcome, answer, boot, remark, prototype, change: None })
    }

    fn unjudged(
        &self,
        text: &DefinitionText,
        found: &[Diagnostic],
    ) -> Result<v1::CheckProbeResponse, CheckError> {
        match self.checker.definition(text) {
            Ok(Definition::Delete(delete)) => {
                message::deletion(text.as_str(), self.checker.deleted_by(text.as_str(), &delete))
            }
            _ => Ok(message::unreadable(found)),
        }
    }

    /// What a definition means in that kernel. Absent for one that is refused there, and if a
    /// module would be needed.
    pub fn meaning(&self, text: &str) -> Option<Meaning> {
        self.checker.meaning(text)
    }

    /// Differences to its meaning on the kernel that it was made for. The daemon would hold it back
    /// here.
    pub fn change(&self, before: &Meaning, text: &str) -> Option<v1::MeaningChange> {
        self.checker.change_of_meaning(before, text)
    }

    fn prototype(&self, place: &Place) -> Option<String> {
        let Place::Symbol { module, symbol, .. } = place else { return None };
        let facts = self.facts.last()?;
        Some(typed::describe_function(symbol, module.as_deref(), &facts).ok()?.prototype)
    }
}

fn boot_remark(found: &BootDependence, location: &str) -> String {
    let mut kinds: Vec<_> = found.sites.iter().map(|site| site.what).collect();
    kinds.dedup();
    format!(
        "`{location}` is in {}, which boot rewrites to fit the processor: some of what it may write refuses a probe there",
        kinds.join(" and in ")
    )
}
