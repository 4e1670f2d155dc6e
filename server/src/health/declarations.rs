//! State of the files that declare probes: the last result, and its host check.
//!
//! Owns that result, which [`crate::declared`] stores here. Never reads a file.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use kprobed_proto::v1::DeclarationProblem;

use super::{HostCheck, failed, named, ok};

/// The result of the last look at the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclarationState {
    /// The directory.
    pub directory: PathBuf,
    /// Files that were read. Absent if there is no such directory.
    pub files: Option<usize>,
    /// Probes that files declare.
    pub probes: usize,
    /// Differences between the files and the host.
    pub problems: Vec<DeclarationProblem>,
}

/// The last result.
#[derive(Debug, Default)]
pub struct Declarations {
    state: RwLock<Option<Arc<DeclarationState>>>,
}

impl Declarations {
    /// The result of the last look. Absent before the first.
    pub fn state(&self) -> Option<Arc<DeclarationState>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the result. Returns whether it has changed.
    pub fn set(&self, state: DeclarationState) -> bool {
        let mut last = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if last.as_deref() == Some(&state) {
            return false;
        }
        *last = Some(Arc::new(state));
        true
    }

    /// Whether everything is as the files say, by the problems that may be shown.
    pub fn check(&self, shown: impl Fn(&DeclarationProblem) -> bool) -> HostCheck {
        const ID: &str = "declarations";
        let Some(state) = self.state() else {
            return ok(ID, "the directory of declarations was not looked at yet");
        };
        let directory = state.directory.display();
        let problems: Vec<_> = state.problems.iter().filter(|problem| shown(problem)).collect();
        let Some(hint) = problems.first().map(|first| first.hint.clone()) else {
            let finding = match state.files {
                None => format!("no file declares probes: there is no directory `{directory}`"),
                Some(files) => {
                    let (noun, verb) = if files == 1 { ("file", "declares") } else { ("files", "declare") };
                    let probes = if state.probes == 1 { "probe" } else { "probes" };
                    format!("{files} {noun} in `{directory}` {verb} {} {probes}", state.probes)
                }
            };
            return ok(ID, finding);
        };
        let finding = named(problems.into_iter().map(in_words), "kprobectl list");
        failed(ID, finding, hint)
    }
}

/// A problem in words: `FILE:LINE:COLUMN: ...`.
pub fn in_words(problem: &DeclarationProblem) -> String {
    let DeclarationProblem { file, line, column, message, .. } = problem;
    match (file.as_str(), line) {
        ("", 0) => message.clone(),
        (file, 0) => format!("{file}: {message}"),
        (file, line) => format!("{file}:{line}:{column}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::CheckStatus;

    fn problem(file: &str, line: u32) -> DeclarationProblem {
        DeclarationProblem {
            file: file.to_owned(),
            line,
            column: 3,
            probe: String::new(),
            message: "`fliter` is not a key of a document".to_owned(),
            hint: "write `filter`".to_owned(),
        }
    }

    #[test]
    fn the_check_says_what_is_not_so_and_where() {
        let declarations = Declarations::default();
        assert_eq!(declarations.check(|_| true).status(), CheckStatus::Ok);
        let directory: PathBuf = "/etc/kprobed/probes.d".into();
        assert!(
            declarations
                .set(DeclarationState { directory: directory.clone(), ..DeclarationState::default() })
        );
        assert!(
            declarations.check(|_| true).finding.contains("there is no directory `/etc/kprobed/probes.d`")
        );
        let good = DeclarationState {
            directory: directory.clone(),
            files: Some(2),
            probes: 5,
            problems: Vec::new(),
        };
        assert!(declarations.set(good.clone()) && !declarations.set(good.clone()));
        assert_eq!(
            declarations.check(|_| true).finding,
            "2 files in `/etc/kprobed/probes.d` declare 5 probes"
        );
        declarations.set(DeclarationState { files: Some(1), probes: 1, ..good.clone() });
        assert_eq!(
            declarations.check(|_| true).finding,
            "1 file in `/etc/kprobed/probes.d` declares 1 probe"
        );
        let problems = (1..6).map(|line| problem("a.yaml", line)).collect();
        declarations.set(DeclarationState { problems, ..good });
        let check = declarations.check(|_| true);
        assert_eq!(
            (check.id.as_str(), check.status(), check.fix.as_str()),
            ("declarations", CheckStatus::Failed, "write `filter`")
        );
        assert!(check.finding.starts_with("a.yaml:1:3: `fliter` is not a key of a document; a.yaml:2:3: "));
        assert!(check.finding.ends_with("2 more (`kprobectl list`)"), "{}", check.finding);
        assert_eq!(in_words(&problem("", 0)), "`fliter` is not a key of a document");
    }
}
