//! Record of the audit log: one thing that was done, refused or read, and by whom.
//!
//! Owns its text: JSON on one line, with the fields in this order. The digest is over this text, so
//! that it is stored and sent as it was written, and never made anew.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A change was taken on, and stored with this entry. The kernel gets it from now on; if it does
    /// not take it, a `failed` entry follows.
    Changed,
    /// A change that was taken on was not made after all, and was taken back.
    Failed,
    /// A request was refused: by the roles, or by the verdict on its definition.
    Refused,
    /// A client began to receive what probes record.
    Read,
    /// The daemon ended or disarmed a probe itself: its lease is over, the client that held it has gone,
    /// or it cost more than its budget.
    Ended,
    /// The oldest entries were deleted, to keep the log within its limit.
    Rotated,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Changed, Self::Failed, Self::Refused, Self::Read, Self::Ended, Self::Rotated];

    /// Its name in records and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Read => "read",
            Self::Ended => "ended",
            Self::Rotated => "rotated",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What an entry says, before it has a place in the log. Text that is empty is left out of the record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// What happened.
    pub action: Action,
    /// Who asked, such as `user:alice`; `kprobed` for the daemon itself.
    pub principal: String,
    /// The method that was called, such as `CreateProbe`. Empty for the daemon itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub method: String,
    /// Which change of the probe or event, for methods that make several: `create`, `update`, `delete`,
    /// `accept`, `adopt`, `count`, `stop counting` or `reload`. Empty if the entry is not about a
    /// change.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub change: String,
    /// The rule that decided, such as ``role `ops`, line 12``. Empty if no rule was needed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// The id of the request, if the client gave one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request: String,
    /// The id of the call in the daemon's log. Empty for refusals and reads, which are counted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub operation: String,
    /// The probe or event, as `GROUP/EVENT`; several are separated by commas.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub probe: String,
    /// The definition as the kernel gets it. For a refused one, the text of the client.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub definition: String,
    /// Whether the probe is to record. Absent if the entry is not about that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Its filter in the kernel.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub filter: String,
    /// Why it was refused, failed or ended; what was read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// How often it happened, if equal ones are joined in this entry.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub times: u64,
}

const fn one() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
const fn is_one(times: &u64) -> bool {
    *times == 1
}

impl Entry {
    /// An entry about nothing yet.
    pub fn new(action: Action, principal: impl Into<String>) -> Self {
        Self {
            action,
            principal: principal.into(),
            method: String::new(),
            change: String::new(),
            rule: String::new(),
            request: String::new(),
            operation: String::new(),
            probe: String::new(),
            definition: String::new(),
            enabled: None,
            filter: String::new(),
            reason: String::new(),
            times: 1,
        }
    }

    /// The same with each text cut after 4096 bytes: clients write some of them.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let Self {
            action: _,
            principal,
            method,
            change,
            rule,
            request,
            operation,
            probe,
            definition,
            enabled: _,
            filter,
            reason,
            times: _,
        } = &mut self;
        for text in [principal, method, change, rule, request, operation, probe, definition, filter, reason] {
            text.truncate(text.floor_char_boundary(MOST_OF_A_TEXT));
        }
        self
    }

    /// That the same change was not made.
    #[must_use]
    pub fn failed(&self, reason: impl Into<String>) -> Self {
        Self { action: Action::Failed, reason: reason.into(), ..self.clone() }
    }
}

/// Most bytes of a text of an entry. What the kernel takes as a definition or a filter is shorter.
const MOST_OF_A_TEXT: usize = 4096;

/// An entry with its place in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its number, from 1, without gaps.
    pub sequence: u64,
    /// When it was written, in nanoseconds since 1970 by the clock of the host.
    pub time_unix_nano: u64,
    /// What it says.
    #[serde(flatten)]
    pub entry: Entry,
}

/// A text that is not a record.
#[derive(Debug, Error)]
#[error("this is not an audit record ({0}): `{1}`")]
pub struct Unreadable(#[source] serde_json::Error, String);

impl Record {
    /// The text that is stored and digested.
    ///
    /// # Errors
    /// None that is known: all fields are text, numbers and booleans.
    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// Reads that.
    ///
    /// # Errors
    /// [`Unreadable`] for any other text.
    pub fn parse(text: &str) -> Result<Self, Unreadable> {
        serde_json::from_str(text).map_err(|error| Unreadable(error, text.chars().take(200).collect()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_record_is_one_line_with_its_fields_in_order() {
        let mut entry = Entry::new(Action::Changed, "user:alice");
        entry.method = "CreateProbe".to_owned();
        entry.definition = "p:kprobes/x do_sys_openat2\n".to_owned();
        entry.enabled = Some(true);
        let text = Record { sequence: 7, time_unix_nano: 5, entry }.to_text().unwrap();
        assert_eq!(
            text,
            r#"{"sequence":7,"time_unix_nano":5,"action":"changed","principal":"user:alice","method":"CreateProbe","definition":"p:kprobes/x do_sys_openat2\n","enabled":true}"#
        );
    }

    #[test]
    fn no_text_of_a_client_makes_a_large_entry() {
        let long = "\u{e9}".repeat(1_000_000);
        let entry = Entry {
            method: long.clone(),
            change: long.clone(),
            rule: long.clone(),
            request: long.clone(),
            probe: long.clone(),
            definition: long.clone(),
            filter: long.clone(),
            reason: long.clone(),
            ..Entry::new(Action::Refused, long)
        };
        let bounded = entry.bounded();
        assert_eq!(bounded.reason.len(), MOST_OF_A_TEXT);
        let text = Record { sequence: 1, time_unix_nano: 1, entry: bounded.clone() }.to_text().unwrap();
        assert!(text.len() < 10 * MOST_OF_A_TEXT, "{}", text.len());
        assert_eq!(bounded.clone().bounded(), bounded);
    }

    #[test]
    fn every_action_has_the_name_that_is_written() {
        for action in Action::ALL {
            assert_eq!(serde_json::to_string(&action).unwrap(), format!("\"{action}\""));
        }
    }

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(
            (sequence, time_unix_nano, times) in any::<(u64, u64, u64)>(),
            (principal, probe, definition, reason) in any::<(String, String, String, String)>(),
            enabled in any::<Option<bool>>(),
            action in 0..Action::ALL.len(),
        ) {
            let entry = Entry {
                probe, definition, enabled, reason, times,
                ..Entry::new(Action::ALL[action], principal)
            };
            let record = Record { sequence, time_unix_nano, entry };
            let text = record.to_text().unwrap();
            prop_assert!(!text.contains('\n'));
            prop_assert_eq!(Record::parse(&text).unwrap(), record);
        }

        #[test]
        fn other_text_is_refused_without_a_panic(text in any::<String>()) {
            if let Ok(record) = Record::parse(&text) {
                record.to_text().unwrap();
            }
        }
    }
}
