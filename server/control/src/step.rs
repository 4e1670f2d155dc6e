//! Steps: single writes to the kernel for an event, as values.
//!
//! Owns which steps bring an event from what the kernel has to what is wanted, and in which order.
//! Plain functions, which never write: [`super::execute`] carries steps out, and [`super::plan`]
//! prints them.

use super::Probe;
use super::observed::Switch;

/// One write to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Switches the event off in the daemon's instance.
    Disable,
    /// Writes the definition.
    Define {
        /// The kernel's line.
        line: String,
    },
    /// Sets the filter in the daemon's instance.
    Filter {
        /// The filter in force; empty for none.
        before: String,
        /// The new filter; empty for none.
        after: String,
    },
    /// Switches the event on in the daemon's instance.
    Enable,
    /// Deletes the event.
    Delete,
}

impl Step {
    /// Its place in the order in which the steps of many events are taken: all that go off, then all definitions,
    /// filters, and all that go on. An event is not deleted together with other changes: see [`super::remove`].
    pub(super) const fn order(&self) -> u8 {
        match self {
            Self::Disable => 0,
            Self::Define { .. } => 1,
            Self::Filter { .. } => 2,
            Self::Enable => 3,
            Self::Delete => 4,
        }
    }
}

/// What the kernel must have of an event: the part of what is wanted that it knows of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aim<'a> {
    /// Whether it is to record. Absent to leave its switch as it is.
    pub(super) enabled: Option<bool>,
    /// Its filter; empty for none.
    pub(super) filter: &'a str,
    /// Whether its call stacks are recorded: for what the filter lets through, by a trigger that is set with the
    /// switch.
    pub(super) stack: bool,
}

impl<'a> Aim<'a> {
    /// What a probe wants.
    pub(super) fn of(probe: &'a Probe) -> Self {
        let spec = &probe.spec;
        Self { enabled: Some(probe.is_to_record()), filter: &spec.filter, stack: spec.stack }
    }
}

/// The present state of one of our events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) switch: Switch,
    /// The filter in force; empty for none.
    pub(super) filter: String,
    /// It is switched on, but its kprobe is marked as disabled: only switching it off and on again
    /// arms it.
    pub(super) unarmed: bool,
}

impl Seen {
    /// An event that was just defined, or that an instance has not recorded yet.
    pub(super) const FRESH: Self = Self { switch: Switch::Off, filter: String::new(), unarmed: false };
}

/// The steps that define an event. One of the host has no line, since it exists.
pub(super) fn define(line: &str, aim: Aim<'_>) -> Vec<Step> {
    let defined = (!line.is_empty()).then(|| Step::Define { line: line.to_owned() });
    defined.into_iter().chain(change(&Seen::FRESH, aim)).collect()
}

/// The steps that bring an event to what is wanted. The filter is set before it is switched on, and
/// after it is switched off: nothing is recorded that neither state would have let through.
pub(super) fn change(seen: &Seen, aim: Aim<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    let is_filtered_anew = seen.filter.trim() != aim.filter.trim();
    let restacks = aim.stack && is_filtered_anew && aim.enabled != Some(false) && seen.switch == Switch::On;
    let rearm = restacks || (aim.enabled == Some(true) && seen.unarmed);
    if rearm || (aim.enabled == Some(false) && seen.switch != Switch::Off) {
        steps.push(Step::Disable);
    }
    if is_filtered_anew {
        steps.push(Step::Filter { before: seen.filter.clone(), after: aim.filter.to_owned() });
    }
    if rearm || (aim.enabled == Some(true) && seen.switch != Switch::On) {
        steps.push(Step::Enable);
    }
    steps
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An event as the kernel would have it after a step.
    fn after(seen: &Seen, step: &Step) -> Seen {
        match step {
            Step::Disable => Seen { switch: Switch::Off, unarmed: false, ..seen.clone() },
            Step::Enable => Seen { switch: Switch::On, ..seen.clone() },
            Step::Filter { before, after } => {
                assert_eq!(*before, seen.filter);
                Seen { filter: after.clone(), ..seen.clone() }
            }
            Step::Define { .. } => Seen::FRESH,
            Step::Delete => panic!("nothing is left to look at"),
        }
    }

    fn switch() -> impl Strategy<Value = Switch> {
        prop_oneof![Just(Switch::On), Just(Switch::Off), Just(Switch::Held), Just(Switch::Partly)]
    }

    fn filter() -> impl Strategy<Value = String> {
        prop_oneof![Just(String::new()), Just("a == 1".to_owned()), Just("a == 2".to_owned())]
    }

    proptest! {
        /// From everything that can be seen, the steps lead to what is wanted, and from there no
        /// step is left.
        #[test]
        fn steps_lead_to_what_is_wanted(
            switch in switch(),
            was in filter(),
            unarmed: bool,
            enabled: Option<bool>,
            filter in filter(),
            stack: bool,
        ) {
            let seen = Seen { switch, filter: was, unarmed: unarmed && switch == Switch::On };
            let aim = Aim { enabled, filter: &filter, stack };
            let steps = change(&seen, aim);
            let end = steps.iter().fold(seen.clone(), |seen, step| after(&seen, step));
            let off = steps.iter().position(|step| *step == Step::Disable);
            prop_assert_eq!(&end.filter, &filter);
            match enabled {
                Some(true) => prop_assert!(end.switch == Switch::On && !end.unarmed),
                Some(false) => prop_assert_eq!(end.switch, Switch::Off),
                None => prop_assert_eq!((end.switch, end.unarmed), (seen.switch, seen.unarmed && off.is_none())),
            }
            prop_assert!(change(&end, aim).is_empty());
            let filtered = steps.iter().position(|step| matches!(step, Step::Filter { .. }));
            let on = steps.iter().position(|step| *step == Step::Enable);
            // The order of one is that of many.
            prop_assert!(steps.iter().map(Step::order).is_sorted());
            // What is recorded meanwhile passes a filter that was, or is to be; its stacks pass the same.
            prop_assert!(!stack || filtered.is_none() || seen.switch != Switch::On || off.is_some());
            prop_assert!(filtered.is_none_or(|at| off.is_none_or(|off| off < at) && on.is_none_or(|on| at < on)));
        }
    }
}
