//! Roll-outs: events, and the state of each host.

use std::io;
use std::path::Path;
use std::time::Duration;

use kprobed_client::fleet::names;
use serde_json::json;

use super::Output;
use super::data::{counted, grouped, one_line, rfc3339_ms};
use super::table::{Cell, Table};
use super::terminal::Tone;
use crate::rollout::{Phase, RolloutEvent, State, Step};

impl Output {
    /// Prints something that happened, at a time in milliseconds since 1970.
    pub(crate) fn rollout_event(
        &mut self,
        rollout: &str,
        time_ms: u64,
        happened: &RolloutEvent,
    ) -> io::Result<()> {
        let time = rfc3339_ms(time_ms);
        let RolloutEvent { wave, event, hosts, message } = happened;
        let object = json!({
            "rollout": rollout, "time": time, "wave": wave, "event": event, "hosts": hosts, "message": message,
        });
        if self.structured_stream(&object)? {
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
            hosts => format!(
                " {} ({})",
                names::fold(hosts.iter().map(String::as_str)),
                counted(hosts.len(), "host")
            ),
        };
        let message = if message.is_empty() { String::new() } else { format!(": {message}") };
        // The end is behind all waves.
        let wave = if *event == "done" { String::new() } else { format!("wave {wave}: ") };
        self.line(&format!("{time} {wave}{what}{hosts}{}", one_line(&message)))
    }

    /// Prints the state of a roll-out: for programs as its file has it.
    pub(crate) fn rollout(&mut self, state: &State) -> io::Result<()> {
        if self.structured(state)? {
            return Ok(());
        }
        let (setting, waves) = (&state.setting, state.waves());
        let head = [
            ("rollout", state.id.clone()),
            ("phase", state.phase.to_string()),
            ("reason", state.reason.clone()),
            ("wave", format!("{} of {waves} ({})", state.wave.min(waves), setting.waves)),
            ("gates", setting.gates.to_string()),
            ("soak", format!("{:?}", Duration::from_millis(setting.soak_ms))),
            ("on failure", setting.on_failure.to_string()),
        ];
        let head: Vec<_> = head.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        self.properties(&head)?;
        self.line("")?;
        let alike = grouped(&state.hosts, |host| (host.wave, host.step, &host.kernel, &host.note));
        let mut table = Table::new(&["WAVE", "HOSTS", "NAMES", "STEP", "KERNEL", "NOTE"]);
        for ((wave, step, kernel, note), hosts) in alike {
            table.row(vec![
                Cell::number(wave as u64),
                Cell::number(hosts.len() as u64),
                Cell::text(names::fold(hosts.iter().map(|host| host.name.as_str()))),
                Cell::toned(step.to_string().replace('_', " "), tone(step)),
                Cell::text(kernel),
                Cell::text(note),
            ]);
        }
        self.table(&table)
    }

    /// Prints how a roll-out has ended for now.
    pub(crate) fn rollout_end(&mut self, state: &State, path: &Path) -> io::Result<()> {
        if self.structured_stream(state)? {
            return Ok(());
        }
        let step = |step: Step| state.hosts.iter().filter(|host| host.step == step).count();
        let (passed, out, back) = (step(Step::Passed), step(Step::LeftOut), step(Step::Undone));
        let all = counted(state.hosts.len(), "host");
        let text = match state.phase {
            Phase::Done => format!("done: {passed} of {all} passed, {out} left out"),
            Phase::Undone if back == 0 => "undone: nothing was changed on any host".to_owned(),
            Phase::Undone => format!("undone: {} put back as they were", counted(back, "host")),
            phase => format!("{phase}: {passed} of {all} passed; `kprobectl rollout status` shows all"),
        };
        self.line(&text)?;
        // The event of an undoing has said why.
        if !matches!(state.phase, Phase::Done | Phase::Undone) {
            if !state.reason.is_empty() {
                self.note(&state.reason);
            }
            let path = path.display();
            self.note(&format!(
                "`kprobectl rollout resume --state {path}` continues, and `kprobectl rollout undo --state {path}` undoes all changes"
            ));
        }
        Ok(())
    }
}

fn tone(step: Step) -> Tone {
    match step {
        Step::Passed => Tone::Good,
        Step::LeftOut => Tone::Bad,
        Step::Intended => Tone::Doubtful,
        Step::Waiting | Step::Accepted | Step::Changed | Step::Undone => Tone::Plain,
    }
}
