//! Roll-outs: events, and the state of each host.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use kprobed_client::fleet::names;
use serde::Serialize;

use super::Output;
use super::style::Tone;
use super::table::{Cell, Table, properties};
use super::time::rfc3339_ns;
use crate::rollout::{Host, OnFailure, Phase, RolloutEvent, State, Step};

/// Something that happened, as JSON and YAML.
#[derive(Serialize)]
struct EventView<'a> {
    rollout: &'a str,
    time: String,
    /// From 1.
    wave: usize,
    event: &'a str,
    hosts: &'a [String],
    message: &'a str,
}

/// A roll-out, as JSON and YAML.
#[derive(Serialize)]
struct RolloutView<'a> {
    rollout: &'a str,
    /// Absent: it is a plan.
    phase: Option<&'static str>,
    reason: &'a str,
    /// The one that is worked on, from 1.
    wave: usize,
    waves: usize,
    gates: String,
    soak_ms: u64,
    on_failure: OnFailure,
    state: Option<String>,
    hosts: Vec<HostView<'a>>,
}

#[derive(Serialize)]
struct HostView<'a> {
    host: &'a str,
    address: &'a str,
    wave: usize,
    step: &'static str,
    kernel: Option<&'a str>,
    /// Probes of the change.
    changes: Vec<ChangeView<'a>>,
    /// The worst figure of each gate, as read last.
    figures: &'a BTreeMap<String, String>,
    note: &'a str,
}

#[derive(Serialize)]
struct ChangeView<'a> {
    probe: &'a str,
    /// `created` or `configured`.
    action: &'static str,
    request_id: &'a str,
}

impl<'a> RolloutView<'a> {
    fn new(state: &'a State, path: Option<&Path>) -> Self {
        Self {
            rollout: &state.id,
            phase: path.map(|_path| state.phase.name()),
            reason: &state.reason,
            wave: shown_wave(state),
            waves: state.waves(),
            gates: state.setting.gates.to_string(),
            soak_ms: state.setting.soak_ms,
            on_failure: state.setting.on_failure,
            state: path.map(|path| path.display().to_string()),
            hosts: state.hosts.iter().map(HostView::new).collect(),
        }
    }
}

impl<'a> HostView<'a> {
    fn new(host: &'a Host) -> Self {
        let changes = host.changes.iter().map(|change| ChangeView {
            probe: &change.probe,
            action: if change.before.is_some() { "configured" } else { "created" },
            request_id: &change.request_id,
        });
        Self {
            host: &host.name,
            address: &host.address,
            wave: host.wave + 1,
            step: host.step.name(),
            kernel: (!host.kernel.is_empty()).then_some(host.kernel.as_str()),
            changes: changes.collect(),
            figures: &host.figures,
            note: &host.note,
        }
    }
}

fn shown_wave(state: &State) -> usize {
    (state.wave + 1).min(state.waves())
}

impl Output {
    /// Prints something that happened.
    pub(crate) fn rollout_event(&mut self, rollout: &str, happened: &RolloutEvent) -> io::Result<()> {
        let RolloutEvent { time_ms, wave, event, hosts, message } = happened;
        let time = rfc3339_ns(time_ms.saturating_mul(1_000_000));
        if self.structured_stream(&EventView {
            rollout,
            time: time.clone(),
            wave: *wave,
            event,
            hosts,
            message,
        })? {
            return Ok(());
        }
        let tone = match *event {
            "passed" | "done" => Tone::Good,
            "gate_failed" | "left_out" => Tone::Bad,
            "paused" | "undoing" => Tone::Doubtful,
            _ => Tone::Plain,
        };
        let what = self.style.paint(tone, &event.replace('_', " "));
        let hosts = match hosts.as_slice() {
            [] => String::new(),
            hosts => format!(" {} ({})", names::fold(hosts.iter().map(String::as_str)), count(hosts.len())),
        };
        let message = if message.is_empty() { String::new() } else { format!(": {message}") };
        self.line(&format!("{time} wave {wave}: {what}{hosts}{}", super::data::one_line(&message)))
    }

    /// Prints the state of a roll-out. One without a file is a plan.
    pub(crate) fn rollout(&mut self, state: &State, path: Option<&Path>) -> io::Result<()> {
        if self.structured(&RolloutView::new(state, path))? {
            return Ok(());
        }
        let on_failure = match state.setting.on_failure {
            OnFailure::Undo => "undo",
            OnFailure::Pause => "pause",
        };
        let head = [
            ("rollout", state.id.clone()),
            ("phase", path.map(|_path| state.phase.name().to_owned()).unwrap_or_default()),
            ("reason", state.reason.clone()),
            ("wave", format!("{} of {} ({})", shown_wave(state), state.waves(), state.setting.waves)),
            ("gates", state.setting.gates.to_string()),
            ("soak", format!("{:?}", std::time::Duration::from_millis(state.setting.soak_ms))),
            ("on failure", on_failure.to_owned()),
            ("state", path.map(|path| path.display().to_string()).unwrap_or_default()),
        ];
        let head: Vec<_> = head.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        let text = properties(self.style, &head);
        self.text(&text)?;
        self.line("")?;
        let mut groups: Vec<(&Host, Vec<&str>)> = Vec::new();
        for host in &state.hosts {
            let same = groups.iter_mut().find(|(first, _)| {
                (first.wave, first.step, &first.kernel, &first.note)
                    == (host.wave, host.step, &host.kernel, &host.note)
            });
            match same {
                Some((_, hosts)) => hosts.push(&host.name),
                None => groups.push((host, vec![&host.name])),
            }
        }
        let mut table = Table::new(&["WAVE", "HOSTS", "NAMES", "STEP", "KERNEL", "NOTE"]);
        for (first, hosts) in groups {
            table.row(vec![
                Cell::number(first.wave as u64 + 1),
                Cell::number(hosts.len() as u64),
                Cell::text(names::fold(hosts)),
                Cell::toned(first.step.name().replace('_', " "), tone(first.step)),
                Cell::text(&first.kernel),
                Cell::text(&first.note),
            ]);
        }
        self.table(&table)
    }

    /// Prints how a roll-out has ended for now.
    pub(crate) fn rollout_end(&mut self, state: &State, path: &Path) -> io::Result<()> {
        if self.structured_stream(&RolloutView::new(state, Some(path)))? {
            return Ok(());
        }
        let step = |step: Step| state.hosts.iter().filter(|host| host.step == step).count();
        let (all, passed, out, back) =
            (state.hosts.len(), step(Step::Passed), step(Step::LeftOut), step(Step::Undone));
        let text = match state.phase {
            Phase::Done => format!("done: {passed} of {} passed, {out} left out", count(all)),
            Phase::Undone if back == 0 => "undone: nothing was changed on any host".to_owned(),
            Phase::Undone => format!("undone: {} put back as they were", count(back)),
            _ => format!(
                "{}: {passed} of {} passed; `kprobectl rollout status` shows all",
                state.phase.name(),
                count(all)
            ),
        };
        self.line(&text)?;
        if state.phase != Phase::Done && !state.reason.is_empty() {
            self.note(&state.reason);
        }
        if !matches!(state.phase, Phase::Done | Phase::Undone) {
            let path = path.display();
            self.note(&format!(
                "`kprobectl rollout resume --state {path}` goes on, and `kprobectl rollout undo --state {path}` puts everything back"
            ));
        }
        Ok(())
    }
}

fn count(hosts: usize) -> String {
    if hosts == 1 { "1 host".to_owned() } else { format!("{hosts} hosts") }
}

fn tone(step: Step) -> Tone {
    match step {
        Step::Passed => Tone::Good,
        Step::LeftOut => Tone::Bad,
        Step::Intended | Step::UndoIntended => Tone::Doubtful,
        Step::Waiting | Step::Accepted | Step::Changed | Step::Undone => Tone::Plain,
    }
}
