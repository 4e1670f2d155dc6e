//! Probes: lists, what became of them, changes of them (`list --watch`), and what their writers should know.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use jiff::Timestamp;
use kprobed_client::api::{DeletedProbe, Probe, ProbeKind, ProbeState, WatchEvent, WatchProbesResponse};
use kprobed_document::json::json;
use kprobed_document::{document_of, write_duration};

use super::data::{grouped, instant, moment, one_line, rfc3339};
use super::table::Cell;
use super::terminal::Tone;
use super::{Column, MessageRow, Output, cost, diagnostic};
use crate::global::Format;

impl MessageRow for Probe {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("NAME", |probe| Cell::text(&probe.name)),
        Column::new("KIND", |probe| Cell::text(kind_name(probe.kind()))),
        Column::new("STATE", |probe| state_of(probe).into()),
        Column::new("LOCATION", |probe| Cell::text(&probe.location)),
        Column::optional("FILTER", |probe| Cell::text(&probe.filter)),
        Column::optional("LEASE", |probe| Cell::text(left(probe, Timestamp::now()))),
        Column::wide("LABELS", |probe| Cell::text(labels_text(probe))),
        Column::wide("UID", |probe| Cell::number(probe.uid.unsigned_abs())),
        Column::wide("CREATED", |probe| Cell::time(probe.create_time.as_ref())),
        Column::wide("CREATOR", |probe| Cell::text(&probe.creator)),
        Column::wide("REASON", |probe| Cell::text(&probe.state_message)),
        Column::wide("DEFINITION", |probe| Cell::text(&probe.definition)),
    ];
}

impl MessageRow for DeletedProbe {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("NAME", |probe| Cell::text(&probe.name)),
        Column::new("HITS", |probe| Cell::optional(probe.profile.as_ref().map(|profile| profile.hits))),
        Column::new("NMISSED", |probe| Cell::optional(probe.profile.as_ref().map(|profile| profile.nmissed))),
        Column::new("NOTE", |probe| Cell::text(&probe.note)),
    ];
}

pub(crate) fn labels_text(probe: &Probe) -> String {
    let sorted: BTreeMap<_, _> = probe.labels.iter().collect();
    sorted.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

pub(crate) const fn kind_name(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Entry => "entry",
        ProbeKind::Return => "return",
        ProbeKind::Event => "event",
        ProbeKind::Unspecified => "unknown",
    }
}

/// The name of a state, and how it is to look.
pub(crate) const fn state_name(state: ProbeState) -> (&'static str, Tone) {
    match state {
        ProbeState::Pending => ("pending", Tone::Doubtful),
        ProbeState::Armed => ("armed", Tone::Good),
        ProbeState::Disabled => ("disabled", Tone::Faint),
        ProbeState::Failed => ("failed", Tone::Bad),
        ProbeState::HeldBack => ("held-back", Tone::Bad),
        ProbeState::Expired => ("expired", Tone::Doubtful),
        ProbeState::Tripped => ("tripped", Tone::Bad),
        ProbeState::Drifted => ("drifted", Tone::Bad),
        ProbeState::Unspecified => ("unknown", Tone::Plain),
    }
}

/// The name of the state of a probe, and how it is to look. That its module is not loaded needs no attention.
pub(crate) fn state_of(probe: &Probe) -> (&'static str, Tone) {
    let (name, tone) = state_name(probe.state());
    (name, if waits_for_module(probe) { Tone::Doubtful } else { tone })
}

/// Whether a probe is held back only until its module is loaded.
pub(crate) fn waits_for_module(probe: &Probe) -> bool {
    probe.state() == ProbeState::HeldBack && ABSENT.contains(&probe.state_reason.as_str())
}

/// The reasons of the daemon for that: of a probe, and of an event of the host.
const ABSENT: [&str; 2] = ["MODULE_ABSENT", "EVENT_ABSENT"];

/// Whether a probe in this state can be hit: the hits of any other are of the past.
pub(crate) const fn can_be_hit(state: ProbeState) -> bool {
    matches!(state, ProbeState::Armed | ProbeState::Drifted | ProbeState::Unspecified)
}

/// How long a probe is still there: `1h 59m 3s`, `ended`, or `held` for one that goes with a
/// client. Empty if it stays.
fn left(probe: &Probe, now: Timestamp) -> String {
    let Some(lease) = &probe.lease else { return String::new() };
    if lease.duration.is_none() {
        return "held".to_owned();
    }
    let Some(end) = instant(lease.expire_time.as_ref()) else { return "unknown".to_owned() };
    let seconds = end.duration_since(now).as_secs();
    if seconds <= 0 {
        return "ended".to_owned();
    }
    write_duration(Duration::from_secs(seconds.unsigned_abs()))
}

/// The same with the time of day at which it ends.
pub(crate) fn lease(probe: &Probe, now: Timestamp) -> String {
    let Some(lease) = &probe.lease else { return String::new() };
    match moment(lease.expire_time.as_ref()) {
        Some(time) => format!("{} (until {time})", left(probe, now)),
        None => format!("held by a client ({})", lease.holder),
    }
}

impl Output {
    /// Prints the names of new probes on stdout, for scripts, and what their writer should know on stderr.
    pub(crate) fn probes_created(&mut self, probes: &[Probe]) -> io::Result<()> {
        self.results(probes, |probe| probe.name.clone())?;
        if self.is_structured() {
            return Ok(());
        }
        for probe in probes {
            self.probe_warnings(probe);
            self.note_state(probe);
        }
        self.note_costs(probes);
        Ok(())
    }

    /// Prints on stderr what hits take: what several probes have in common, once.
    fn note_costs(&mut self, probes: &[Probe]) {
        let costs = probes.iter().filter_map(|probe| Some((&probe.name, probe.hit_cost.as_ref()?)));
        let costs = grouped(costs, |(_, cost)| cost::hit_in_words(cost));
        for (words, alike) in &costs {
            match alike.as_slice() {
                _ if costs.len() == 1 => self.note(words),
                [(name, _)] => self.note(&format!("`{name}`: {words}")),
                _ => self.note(&format!("{} probes: {words}", alike.len())),
            }
        }
    }

    /// Prints on stderr what the writer of a probe should know.
    pub(crate) fn probe_warnings(&mut self, probe: &Probe) {
        if !probe.warnings.is_empty() {
            let text = diagnostic::render(&probe.definition, &probe.warnings, self.error_style);
            self.message(&text);
        }
    }

    /// Prints probes that were changed, with what is new, and why they are not in their desired state.
    pub(crate) fn probes_changed(
        &mut self,
        probes: &[Probe],
        what: impl Fn(&Probe) -> String,
    ) -> io::Result<()> {
        self.results(probes, |probe| format!("{} {}", probe.name, what(probe)))?;
        if !self.is_structured() {
            for probe in probes {
                self.note_state(probe);
            }
        }
        Ok(())
    }

    /// Prints on stderr why a probe is not in its desired state.
    pub(crate) fn note_state(&mut self, probe: &Probe) {
        if !probe.state_message.is_empty() {
            let state = state_name(probe.state()).0;
            self.note(&format!("`{}` is {state}: {}", probe.name, probe.state_message));
        }
        if !probe.state_hint.is_empty() {
            self.hint(&probe.state_hint);
        }
    }

    /// Prints a list of probes; as YAML their documents, which can be applied.
    pub(crate) fn probes(&mut self, probes: &[Probe]) -> io::Result<()> {
        if self.format == Format::Yaml {
            self.begin_list();
            return probes.iter().try_for_each(|probe| self.structured_stream(&document_of(probe)).map(drop));
        }
        self.rows(probes)?;
        // That its module is not loaded is shown by the state alone.
        let unlike = |probe: &&Probe| {
            !probe.state_hint.is_empty() || !probe.state_message.is_empty() && state_of(probe).1 == Tone::Bad
        };
        if !self.is_structured() {
            for probe in probes.iter().filter(unlike) {
                self.note_state(probe);
            }
        }
        Ok(())
    }

    /// Prints probes that were deleted, with their last hit counts.
    pub(crate) fn probes_deleted(&mut self, deleted: &[DeletedProbe]) -> io::Result<()> {
        self.results(deleted, |DeletedProbe { name, profile, .. }| match profile {
            Some(profile) => format!("{name} hits={} nmissed={}", profile.hits, profile.nmissed),
            None => name.clone(),
        })?;
        for probe in deleted.iter().filter(|probe| !probe.note.is_empty()) {
            self.remark(&format!("`{}`: {}", probe.name, probe.note));
        }
        Ok(())
    }

    /// Prints a message of a watch: a line or a document for a probe, a note for the rest.
    pub(crate) fn watched(&mut self, message: &WatchProbesResponse) -> io::Result<()> {
        let (event, tone) = match message.event() {
            WatchEvent::Present => ("present", Tone::Faint),
            WatchEvent::Synced => ("synced", Tone::Faint),
            WatchEvent::Added => ("added", Tone::Good),
            WatchEvent::Changed => ("changed", Tone::Plain),
            WatchEvent::Deleted => ("deleted", Tone::Doubtful),
            WatchEvent::Restarted => ("restarted", Tone::Bad),
            WatchEvent::Unspecified => ("unknown", Tone::Plain),
        };
        if self.format == Format::Json {
            return self.structured_stream(&json(message)?).map(drop);
        }
        let Some(probe) = &message.probe else {
            match message.event() {
                WatchEvent::Synced => self.note("these are all; changes follow"),
                WatchEvent::Restarted => {
                    self.note(
                        "changes may have been missed while there was no connection: all probes follow",
                    );
                }
                _ => {}
            }
            return Ok(());
        };
        let (state, state_tone) = state_of(probe);
        if self.format == Format::Yaml {
            self.line(&format!("---\n# {event}, {state}"))?;
            return self.structured(&document_of(probe)).map(drop);
        }
        let mut line = vec![
            // When the state began, which for a change is when it was noticed.
            rfc3339(probe.state_time.as_ref()).unwrap_or_else(|| "-".to_owned()),
            self.style.paint(tone, &format!("{event:<7}")),
            one_line(&probe.name),
            self.style.paint(state_tone, state),
        ];
        if self.is_wide() {
            let shown = |text: &str| if text.is_empty() { "-".to_owned() } else { one_line(text) };
            let kind = kind_name(probe.kind());
            line.extend([kind, &probe.location, &probe.filter, &labels_text(probe)].map(shown));
        }
        if !probe.state_message.is_empty() {
            line.push(one_line(&probe.state_message));
        }
        self.line(&line.join("  "))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use kprobed_client::api::{HitCost, Lease};

    use super::*;
    use crate::global::Global;

    #[derive(clap::Parser)]
    struct Options {
        #[command(flatten)]
        global: Global,
    }

    #[test]
    fn a_hint_follows_the_note() {
        let Options { global } = Options::parse_from(["kprobectl", "--color", "never"]);
        let mut output = Output::new(&global).keeping();
        output.note_state(&Probe {
            name: "kprobes/storm".to_owned(),
            state: ProbeState::Tripped.into(),
            state_message: "over its budget".to_owned(),
            state_hint: "`kprobectl enable kprobes/storm` arms it again".to_owned(),
            ..Default::default()
        });
        assert_eq!(
            output.into_kept().messages,
            "note: `kprobes/storm` is tripped: over its budget\n\
             hint: `kprobectl enable kprobes/storm` arms it again\n"
        );
    }

    #[test]
    fn what_a_hit_takes_is_said_once_for_all_of_which_it_is_true() {
        let probe = |name: &str, ns| Probe {
            name: name.to_owned(),
            hit_cost: Some(HitCost { ns, error_ns: 20.0, calibrated: true }),
            ..Default::default()
        };
        let said = |probes: &[Probe]| {
            let Options { global } = Options::parse_from(["kprobectl", "--color", "never"]);
            let mut output = Output::new(&global).keeping();
            output.probes_created(probes).unwrap();
            output.into_kept().messages
        };
        let [one, two, other] = [probe("a/one", 500.0), probe("a/two", 500.0), probe("a/other", 900.0)];
        assert_eq!(said(&[one.clone(), two.clone()]), "note: a hit takes 500±20 ns\n");
        assert_eq!(
            said(&[one, other, two]),
            "note: 2 probes: a hit takes 500±20 ns\nnote: `a/other`: a hit takes 900±20 ns\n"
        );
    }

    #[test]
    fn a_list_says_why_a_probe_does_not_do_what_was_asked() {
        let Options { global } = Options::parse_from(["kprobectl", "--color", "never"]);
        let mut output = Output::new(&global).keeping();
        let probe = |name: &str, state: ProbeState, reason: &str| Probe {
            name: name.to_owned(),
            state: state.into(),
            state_reason: reason.to_owned(),
            state_message: "a message".to_owned(),
            ..Default::default()
        };
        let bad = probe("kprobes/bad", ProbeState::Failed, "NO_SYMBOL");
        let waiting = probe("kprobes/waiting", ProbeState::HeldBack, "MODULE_ABSENT");
        output.probes(&[bad, waiting, probe("kprobes/new", ProbeState::Pending, "")]).unwrap();
        let said = output.into_kept().messages;
        assert!(said.contains("note: `kprobes/bad` is failed: a message\n"), "{said}");
        assert_eq!(said.matches("a message").count(), 1, "{said}");
    }

    #[test]
    fn the_time_that_is_left() {
        let now = Timestamp::new(1_000_000, 0).unwrap();
        let ending = |seconds: i64| Probe {
            lease: Some(Lease {
                duration: Some(prost_types::Duration { seconds: 7200, nanos: 500_000_000 }),
                expire_time: Some(prost_types::Timestamp { seconds: 1_000_000 + seconds, nanos: 0 }),
                holder: String::new(),
            }),
            ..Default::default()
        };
        let left_of = |seconds| left(&ending(seconds), now);
        assert_eq!((left_of(7143).as_str(), left_of(86_400).as_str()), ("1h 59m 3s", "1d"));
        assert_eq!(
            (left_of(0).as_str(), left_of(-5).as_str(), left_of(1).as_str()),
            ("ended", "ended", "1s")
        );
        assert_eq!(lease(&ending(60), now), "1m (until 1970-01-12T13:47:40Z)");
        let held = Lease { holder: "hold-1".to_owned(), ..Lease::default() };
        let held = Probe { lease: Some(held), ..Default::default() };
        assert_eq!(
            (left(&held, now).as_str(), lease(&held, now).as_str()),
            ("held", "held by a client (hold-1)")
        );
        let stays = Probe::default();
        assert_eq!((left(&stays, now).as_str(), lease(&stays, now).as_str()), ("", ""));
    }
}
