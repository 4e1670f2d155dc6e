//! The text of a hist trigger: keys, sums, variable, action, filter.

use std::fmt;

use kprobed_lang::model::ProbeName;

/// A trigger that counts events in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistTrigger {
    /// Keys of a row, in the order in which the kernel prints them; 1 to [`super::MAX_KEYS`].
    pub keys: Vec<HistKey>,
    /// Fields that are added up, at most [`super::MAX_SUMS`].
    pub sums: Vec<String>,
    /// A variable of the table. Its name must be unique in the instance: a table is found by it.
    pub variable: HistVariable,
    /// Rows that the table has room for.
    pub rows: u32,
    /// Clock that the instance has to have: without it, a trigger that uses time stamps switches
    /// the instance to `global` (kernel/trace/trace_events_hist.c:hist_register_trigger).
    pub clock: Option<&'static str>,
    /// A further action on a hit.
    pub action: Option<HistAction>,
    /// Only events that pass it; empty for all.
    pub filter: String,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistKey {
    /// The field, a field that all events have (`common_pid`, `common_cpu`), or `stacktrace`.
    pub field: String,
    /// How its values are grouped and printed.
    pub form: KeyForm,
}

/// How the values of a key are grouped and printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyForm {
    /// A number, as it is.
    Number,
    /// By the power of two that is the next one above it.
    Log2,
    /// In buckets of that size.
    Buckets(u64),
    /// An address, as the symbol that it is in.
    Symbol,
    /// An address, as a symbol and the distance from it.
    SymbolOffset,
    /// A thread id, with the name of the thread.
    Execname,
    /// A string.
    Text,
    /// The call stack.
    Stack,
}

/// A variable of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistVariable {
    /// Only a name.
    Mark(String),
    /// The time of the last event of a row.
    Time(String),
    /// How much later an event is than that variable of another table says.
    Since {
        /// Its name.
        name: String,
        /// The variable that is subtracted.
        start: String,
    },
}

impl HistVariable {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Mark(name) | Self::Time(name) | Self::Since { name, .. } => name,
        }
    }
}

/// Makes a synthetic event of the variable, when an event of `after` came before with the same
/// keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistAction {
    /// The event whose table has the variable that this one refers to.
    pub after: ProbeName,
    /// The synthetic event.
    pub synthetic: String,
}

impl fmt::Display for HistKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field)?;
        match self.form {
            KeyForm::Number | KeyForm::Text | KeyForm::Stack => Ok(()),
            KeyForm::Log2 => f.write_str(".log2"),
            KeyForm::Buckets(size) => write!(f, ".buckets={size}"),
            KeyForm::Symbol => f.write_str(".sym"),
            KeyForm::SymbolOffset => f.write_str(".sym-offset"),
            KeyForm::Execname => f.write_str(".execname"),
        }
    }
}

impl fmt::Display for HistTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, key) in self.keys.iter().enumerate() {
            write!(f, "{}{key}", if index == 0 { "hist:keys=" } else { "," })?;
        }
        if !self.sums.is_empty() {
            write!(f, ":vals={}", self.sums.join(","))?;
        }
        let name = self.variable.name();
        match &self.variable {
            HistVariable::Mark(_) => write!(f, ":{name}=0")?,
            HistVariable::Time(_) => write!(f, ":{name}=common_timestamp")?,
            HistVariable::Since { start, .. } => write!(f, ":{name}=common_timestamp-${start}")?,
        }
        write!(f, ":size={}", self.rows)?;
        if let Some(clock) = self.clock {
            write!(f, ":clock={clock}")?;
        }
        if let Some(HistAction { after, synthetic }) = &self.action {
            write!(f, ":onmatch({}.{}).{synthetic}(${name})", after.group(), after.event())?;
        }
        if !self.filter.is_empty() {
            write!(f, " if {}", self.filter)?;
        }
        Ok(())
    }
}
