//! Trigger plans: which triggers of the kernel count what a client asked for.
//!
//! Owns the translation of a specification into triggers, and how their tables are to be read.
//! Plain functions over names and fields: never reads or writes the kernel.

use kprobed_proto::v1;
use kprobed_proto::v1::aggregation_key::Key;
use kprobed_proto::v1::{AggregationColumn as Column, ContextKey, HistogramSpec, KeyScale, LatencySpec};

use super::own_threads;
use super::{LATENCY_FIELD, SYNTHETIC_PREFIX};
use crate::error::Error;
use kprobed_host::tracefs::hist::{
    HistAction, HistKey, HistTrigger, HistVariable, KeyForm, MAX_KEYS, MAX_SUMS, TABLE_ROWS,
};
use kprobed_lang::definition::Code;
use kprobed_lang::model::ProbeName;
use kprobed_trace::decode::{Base, FieldKind, FieldSchema, Notation, Schema};
use kprobed_trace::filter::{Filter, Proofs};

/// A probe that is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted<'a> {
    pub(super) probe: &'a ProbeName,
    pub(super) schema: &'a Schema,
    /// What shows that its fields were read.
    pub(super) proofs: &'a Proofs,
}

/// What the kernel is to do, and how its tables are to be read.
#[derive(Clone, Debug)]
pub(super) struct TriggerPlan {
    /// In the order in which their triggers are added. They are removed in reverse order.
    pub(super) tables: Vec<Table>,
    /// Indices of keys in the order in which the kernel prints them.
    pub(super) printed: Vec<usize>,
    /// By sum.
    pub(super) signed_sums: Vec<bool>,
    /// The synthetic event that must be made before the triggers.
    pub(super) synthetic: Option<String>,
    /// The keys of the rows.
    pub(super) keys: Vec<RowKey>,
    /// The sums as clients see them.
    pub(super) sums: Vec<Column>,
    /// What a reader must know of the counts.
    pub(super) warnings: Vec<v1::Diagnostic>,
    /// The place of the probe, if the kernel cannot follow the stack from there.
    pub(super) place: Option<String>,
}

/// A key of the rows.
#[derive(Clone, Debug)]
pub(super) struct RowKey {
    pub(super) meaning: Meaning,
    /// How people write its numbers.
    pub(super) notation: Notation,
    /// Bytes of a number.
    pub(super) bytes: usize,
    /// As clients see it.
    pub(super) column: Column,
}

impl RowKey {
    /// A key that is no field.
    fn of_context(meaning: Meaning, name: &str) -> Self {
        Self { meaning, notation: Notation::default(), bytes: 0, column: column(name, None) }
    }
}

/// A trigger and its event.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) event: ProbeName,
    pub(super) trigger: HistTrigger,
    pub(super) role: Role,
}

/// What a table is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Rows of the result.
    Result {
        /// The key whose values are negative or above 2^63 in this table. The table does not have
        /// that key.
        beyond: Option<usize>,
    },
    /// Starts of latencies.
    Starts,
    /// Ends of latencies.
    Ends,
    /// What the daemon's own threads did, and is in no row.
    Own,
    /// What is in no row because a value that decides could not be read.
    Unread,
}

/// What the numbers of a key mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Unsigned,
    Signed,
    /// With a sign, in the lower 32 bits.
    LowerHalf,
    /// The name of a thread alone.
    Comm,
    /// A text that the kernel has made of an address: the name of its symbol, or else the address.
    Symbol,
    /// What it is printed as.
    Printed,
}

/// Rows of a table unless the client says otherwise: the kernel's default.
const DEFAULT_ROWS: u32 = 2048;

/// Rows for starts and ends of latencies: one for each thread (or match key) that was ever seen.
const MATCH_ROWS: u32 = 16384;

fn refuse<T>(field: impl Into<String>, message: impl Into<String>) -> Result<T, Error> {
    Err(Error::bad_argument(field.into(), message))
}

fn rows(size: u32, field: &str) -> Result<u32, Error> {
    match size {
        0 => Ok(DEFAULT_ROWS),
        size if TABLE_ROWS.contains(&size) => Ok(size),
        _ => {
            let (least, most) = (TABLE_ROWS.start(), TABLE_ROWS.end());
            refuse(field, format!("a table has {least} to {most} rows"))
        }
    }
}

/// A field of a probe's events. The error lists the fields that exist.
fn field_of<'a>(
    schema: &'a Schema,
    probe: &ProbeName,
    name: &str,
    path: &str,
) -> Result<&'a FieldSchema, Error> {
    if let Some(field) = schema.fields.iter().find(|field| field.name == name) {
        if field.array_len.is_some() {
            return refuse(path, format!("`{name}` is an array, and the kernel counts single values"));
        }
        if field.notation == Notation::Computed {
            return refuse(
                path,
                format!("the daemon computes `{name}`, and the kernel counts what it records"),
            );
        }
        return Ok(field);
    }
    let names: Vec<_> = schema.fields.iter().map(|field| format!("`{}`", field.name)).collect();
    let mut known =
        if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) };
    let is_key = path.contains(".keys[");
    known.push_str(match name {
        "retval" => "; `FUNCTION%return` has what a function returns",
        "pid" | "tid" | "tgid" if is_key => "; the kernel counts by `thread`, and knows no processes",
        "kstack" | "ustack" if is_key => "; the key `stack` is the call stack in the kernel",
        _ => "",
    });
    refuse(path, format!("`{probe}` has no field `{name}`: {known}"))
}

/// Why a key cannot stand beside the others: one of them is the same to the kernel.
fn is_there(keys: &[(HistKey, RowKey)], (hist, key): &(HistKey, RowKey)) -> Option<&'static str> {
    let (_, same) = keys.iter().find(|(other, _)| other == hist)?;
    Some(if same.meaning == key.meaning {
        "this key occurs twice"
    } else {
        "`thread` shows the name of the thread too: leave `comm` out"
    })
}

/// Why the numbers that the kernel has of a field are in another order than those that are shown.
fn recorded_otherwise(field: &FieldSchema) -> Option<&'static str> {
    if field.notation.is_in_network_order() {
        Some("it is recorded in network order")
    } else {
        field.is_lower_half.then_some("it records all 64 bits that the system call was given")
    }
}

const fn is_signed(kind: FieldKind) -> bool {
    matches!(kind, FieldKind::Signed { .. })
}

const fn is_integer(kind: FieldKind) -> bool {
    matches!(kind, FieldKind::Signed { .. } | FieldKind::Unsigned { .. })
}

fn column(name: &str, field: Option<&FieldSchema>) -> Column {
    let hexadecimal = field.is_some_and(|field| field.base == Some(Base::Hex));
    let unproven = field.is_some_and(|field| !field.fault_detected);
    Column { name: name.to_owned(), hexadecimal, unproven }
}

/// Absent for a key that this version of the daemon does not know.
fn context_key(key: ContextKey) -> Option<(HistKey, RowKey)> {
    let (field, form, meaning, name) = match key {
        ContextKey::Unspecified => return None,
        ContextKey::Thread => ("common_pid", KeyForm::Execname, Meaning::Printed, "thread"),
        ContextKey::Comm => ("common_pid", KeyForm::Execname, Meaning::Comm, "comm"),
        ContextKey::Cpu => ("common_cpu", KeyForm::Number, Meaning::Unsigned, "cpu"),
        // Known to all kernels by this name; newer ones print another.
        ContextKey::Stack => ("stacktrace", KeyForm::Stack, Meaning::Printed, "stack"),
    };
    Some((HistKey { field: field.to_owned(), form }, RowKey::of_context(meaning, name)))
}

/// The form of a field as a key.
fn form_of(field: &FieldSchema, key: &v1::FieldKey, path: &str) -> Result<(KeyForm, Meaning), Error> {
    let name = &field.name;
    let meaning = match (is_signed(field.kind), field.is_lower_half) {
        (false, _) => Meaning::Unsigned,
        (true, false) => Meaning::Signed,
        (true, true) => Meaning::LowerHalf,
    };
    if let (KeyScale::Log2 | KeyScale::Linear, Some(why)) = (key.scale(), recorded_otherwise(field)) {
        let message =
            format!("the kernel cannot make ranges of `{name}`: {why}; use the field without a range");
        return refuse(format!("{path}.scale"), message);
    }
    let address =
        matches!(field.kind, FieldKind::Symbol | FieldKind::SymbolName | FieldKind::Unsigned { bytes: 8 });
    match (key.scale(), field.kind) {
        (scale, _) if key.bucket_size != 0 && scale != KeyScale::Linear => {
            refuse(format!("{path}.bucket_size"), "`bucket_size` is only valid with KEY_SCALE_LINEAR")
        }
        (KeyScale::Unspecified, FieldKind::String) if field.names_addresses() => {
            Ok((KeyForm::Text, Meaning::Symbol))
        }
        (KeyScale::Unspecified, FieldKind::String) => Ok((KeyForm::Text, Meaning::Printed)),
        (KeyScale::Unspecified | KeyScale::SymbolOffset, FieldKind::Symbol | FieldKind::SymbolName) => {
            Ok((KeyForm::SymbolOffset, Meaning::Printed))
        }
        (KeyScale::Unspecified, _) => Ok((KeyForm::Number, meaning)),
        (KeyScale::Log2, kind) if is_integer(kind) => Ok((KeyForm::Log2, meaning)),
        (KeyScale::Linear, _) if key.bucket_size == 0 => {
            refuse(format!("{path}.bucket_size"), "a bucket has a width of 1 or more")
        }
        (KeyScale::Linear, kind) if is_integer(kind) => Ok((KeyForm::Buckets(key.bucket_size), meaning)),
        (KeyScale::Log2 | KeyScale::Linear, _) => {
            refuse(format!("{path}.scale"), format!("`{name}` is not an integer: only integers have buckets"))
        }
        (KeyScale::Symbol, _) if address => Ok((KeyForm::Symbol, Meaning::Printed)),
        (KeyScale::SymbolOffset, _) if address => Ok((KeyForm::SymbolOffset, Meaning::Printed)),
        (KeyScale::Symbol | KeyScale::SymbolOffset, _) => refuse(
            format!("{path}.scale"),
            format!("`{name}` is not an address: addresses are unsigned and have 64 bits"),
        ),
    }
}

impl Counted<'_> {
    /// The filter of the events of which all that decides was read, and that of the events of which it was not, if
    /// there can be any.
    fn read<'a, I>(&self, filter: &str, names: I) -> (String, Option<String>)
    where
        I: IntoIterator<Item = &'a str>,
    {
        let (certain, possible) = (self.proofs.certain(filter), self.proofs.possible(filter));
        let read = self.proofs.of_fields(names).map_or(certain.clone(), |proof| both(&certain, &proof));
        let unread = (read != possible).then(|| both(&possible, &format!("!({read})")));
        (read, unread)
    }

    /// A warning for each field of which nothing shows that it was read.
    fn unproven<'a, I>(&self, filter: &str, names: I) -> Vec<v1::Diagnostic>
    where
        I: IntoIterator<Item = &'a str>,
    {
        let filter = Filter::parse(filter).ok();
        let mut used: Vec<&str> = names.into_iter().collect();
        if let Some(filter) = &filter {
            filter.fields(&mut |name, _span| used.push(name));
        }
        let unproven = self.schema.fields.iter().filter(|field| !field.fault_detected);
        let used = unproven.filter(|field| used.contains(&field.name.as_str()));
        let warning = |field: &FieldSchema| v1::Diagnostic {
            severity: v1::Severity::Warning.into(),
            code: Code::Unproven.name().to_owned(),
            message: format!(
                "nothing shows whether `{}` of `{}` could be read: what is counted by it may be what was in memory before",
                field.name, self.probe
            ),
            hint: "the warnings of the probe tell why, and what to write instead".to_owned(),
            ..Default::default()
        };
        used.map(warning).collect()
    }
}

/// A trigger that counts the events that pass a filter, and does nothing else.
fn counting(keys: Vec<HistKey>, variable: HistVariable, rows: u32, filter: String) -> HistTrigger {
    HistTrigger { keys, sums: Vec::new(), variable, rows, clock: None, action: None, filter }
}

/// A table with one row, which cannot be full: it counts the events that pass a filter.
pub(super) fn one_row(event: &ProbeName, mark: String, filter: String, role: Role) -> Table {
    let keys = vec![HistKey { field: "common_type".to_owned(), form: KeyForm::Number }];
    let trigger = counting(keys, HistVariable::Mark(mark), *TABLE_ROWS.start(), filter);
    Table { event: event.clone(), trigger, role }
}

/// Both filters together.
pub(super) fn both(filter: &str, more: &str) -> String {
    if filter.is_empty() { more.to_owned() } else { format!("({filter}) && {more}") }
}

impl TriggerPlan {
    /// How to count the events of a probe. `number` distinguishes the triggers of the instance.
    pub(super) fn histogram(spec: &HistogramSpec, number: u64, counted: Counted<'_>) -> Result<Self, Error> {
        let root = "spec.histogram";
        let Counted { probe, schema, .. } = counted;
        if spec.keys.len() > MAX_KEYS {
            return refuse(format!("{root}.keys"), format!("the kernel takes at most {MAX_KEYS} keys"));
        }
        if spec.sums.len() > MAX_SUMS {
            return refuse(format!("{root}.sums"), format!("the kernel takes at most {MAX_SUMS} sums"));
        }
        let mut keys = Vec::<(HistKey, RowKey)>::new();
        // What the kernel puts into the wrong power of two, and the filters that separate it from
        // the rest.
        let mut split: Option<(usize, [String; 2])> = None;
        for (index, key) in spec.keys.iter().enumerate() {
            let path = format!("{root}.keys[{index}]");
            let key = match &key.key {
                None => return refuse(path, "a key must be a field or a context key"),
                Some(Key::Context(context)) => {
                    let known = ContextKey::try_from(*context).ok().and_then(context_key);
                    let Some(known) = known else {
                        return refuse(path, "`context` must name a context key");
                    };
                    known
                }
                Some(Key::Field(key)) => {
                    let (path, name) = (format!("{path}.field"), &key.field);
                    let field = field_of(schema, probe, name, &format!("{path}.field"))?;
                    let (form, meaning) = form_of(field, key, &path)?;
                    let conditions = match (form, field.kind) {
                        (KeyForm::Log2, FieldKind::Signed { .. }) => {
                            Some([format!("{name} >= 0"), format!("{name} < 0")])
                        }
                        (KeyForm::Log2, FieldKind::Unsigned { bytes: 8 }) => {
                            Some([format!("{name} <= {}", 1_u64 << 63), format!("{name} > {}", 1_u64 << 63)])
                        }
                        _ => None,
                    };
                    if let Some(conditions) = conditions
                        && split.replace((index, conditions)).is_some()
                    {
                        let message =
                            "only one key can be powers of two of a field with a sign or of 64 bits";
                        return refuse(format!("{path}.scale"), message);
                    }
                    let (notation, bytes) = (field.notation.clone(), field.kind.value_bytes());
                    let column = column(name, Some(field));
                    (HistKey { field: name.clone(), form }, RowKey { meaning, notation, bytes, column })
                }
            };
            if let Some(why) = is_there(&keys, &key) {
                return refuse(path, why);
            }
            if key.0.form == KeyForm::Text && keys.iter().any(|(other, _)| other.form == KeyForm::Text) {
                return refuse(path, "the kernel has room for one string among the keys");
            }
            keys.push(key);
        }
        let (keys, row_keys): (Vec<_>, Vec<_>) = keys.into_iter().unzip();
        let (mut sums, mut signed_sums) = (Vec::new(), Vec::new());
        for (index, name) in spec.sums.iter().enumerate() {
            let path = format!("{root}.sums[{index}]");
            let field = field_of(schema, probe, name, &path)?;
            if !is_integer(field.kind) {
                return refuse(path, format!("`{name}` is not an integer: only integers can be added up"));
            }
            if let Some(why) = recorded_otherwise(field) {
                return refuse(path, format!("the kernel cannot add up `{name}`: {why}"));
            }
            signed_sums.push(is_signed(field.kind));
            sums.push(column(name, Some(field)));
        }
        // The kernel's own form of a row with a stack is the simplest with the stack in front.
        let mut printed: Vec<_> = (0..keys.len()).collect();
        printed.sort_by_key(|index| keys.get(*index).is_none_or(|key| key.form != KeyForm::Stack));
        let rows = rows(spec.size, &format!("{root}.size"))?;
        let table = |mark: &str, filter: String, beyond: Option<usize>| {
            let ordered = printed.iter().filter(|&&index| beyond != Some(index));
            let mut ordered: Vec<_> = ordered.filter_map(|index| keys.get(*index).cloned()).collect();
            if ordered.is_empty() {
                // The kernel requires a key: this one is the same in all events of a probe.
                ordered.push(HistKey { field: "common_type".to_owned(), form: KeyForm::Number });
            }
            let mark = HistVariable::Mark(format!("kprobed_{number}{mark}"));
            let trigger = HistTrigger { sums: spec.sums.clone(), ..counting(ordered, mark, rows, filter) };
            Table { event: probe.clone(), trigger, role: Role::Result { beyond } }
        };
        let own = (!spec.include_self).then(|| own_threads::condition(root, probe, schema)).transpose()?;
        let of_others = |filter: String| own_threads::left_out_of(filter, own.as_deref());
        let (read, unread) = counted.read(&spec.filter, values(spec));
        let filter = of_others(read);
        let unread = unread
            .map(|filter| one_row(probe, format!("kprobed_{number}u"), of_others(filter), Role::Unread));
        let mut tables = match split {
            None => vec![table("", filter, None)],
            Some((index, [within, beyond])) => {
                vec![table("", both(&filter, &within), None), table("b", both(&filter, &beyond), Some(index))]
            }
        };
        let certain = counted.proofs.certain(&spec.filter);
        tables.extend(own.map(|own| own_threads::table(probe, &own, &certain, number)));
        tables.extend(unread);
        Ok(Self {
            tables,
            printed,
            signed_sums,
            synthetic: None,
            keys: row_keys,
            sums,
            warnings: counted.unproven(&spec.filter, values(spec)),
            place: None,
        })
    }

    /// How to measure the time between events of two probes.
    pub(super) fn latency(
        spec: &LatencySpec,
        number: u64,
        [start, end]: [Counted<'_>; 2],
        clock: &'static str,
    ) -> Result<Self, Error> {
        let root = "spec.latency";
        if start.probe == end.probe {
            return refuse(
                format!("{root}.end_probe"),
                "the start and the end of a latency must be different probes",
            );
        }
        if spec.keys.len() + 1 > MAX_KEYS {
            return refuse(
                format!("{root}.keys"),
                format!("a latency has at most {} further keys", MAX_KEYS - 1),
            );
        }
        let matched = match_key(spec, [start, end])?;
        let rows = rows(spec.size, &format!("{root}.size"))?;
        let form = if spec.bucket_ns == 0 { KeyForm::Log2 } else { KeyForm::Buckets(spec.bucket_ns) };
        let latency = HistKey { field: LATENCY_FIELD.to_owned(), form };
        let mut keys = vec![(latency, RowKey::of_context(Meaning::Unsigned, LATENCY_FIELD))];
        for (index, context) in spec.keys().enumerate() {
            let path = format!("{root}.keys[{index}]");
            if context == ContextKey::Stack {
                return refuse(path, "a latency has no call stack: it lies between two probes");
            }
            let Some(key) = context_key(context) else {
                return refuse(path, "a key must be a field or a context key");
            };
            if let Some(why) = is_there(&keys, &key) {
                return refuse(path, why);
            }
            keys.push(key);
        }
        let (keys, row_keys): (Vec<_>, Vec<_>) = keys.into_iter().unzip();
        let synthetic = format!("{SYNTHETIC_PREFIX}{number}");
        let event =
            ProbeName::new("synthetic", &synthetic).or_else(|error| refuse(root, error.to_string()))?;
        let variable = format!("kprobed_{number}");
        let matching = |variable, filter, action| HistTrigger {
            clock: Some(clock),
            action,
            ..counting(vec![matched.clone()], variable, MATCH_ROWS, filter)
        };
        let action = HistAction { after: start.probe.clone(), synthetic: synthetic.clone() };
        let since = HistVariable::Since { name: format!("{variable}e"), start: variable.clone() };
        let own = |end: Counted<'_>| own_threads::condition(root, end.probe, end.schema);
        let [own_start, own_end] =
            if spec.include_self { [None, None] } else { [Some(own(start)?), Some(own(end)?)] };
        let value = (!spec.match_field.is_empty()).then_some(spec.match_field.as_str());
        let ((start_read, start_unread), (end_read, end_unread)) =
            (start.read(&spec.start_filter, value), end.read(&spec.end_filter, value));
        let of_start = |filter: String| own_threads::left_out_of(filter, own_start.as_deref());
        let of_end = |filter: String| own_threads::left_out_of(filter, own_end.as_deref());
        let (start_filter, end_filter) = (of_start(start_read), of_end(end_read));
        let unread = |end: Counted<'_>, mark: &str, filter: String| {
            one_row(end.probe, format!("{variable}{mark}"), filter, Role::Unread)
        };
        let mut warnings = start.unproven(&spec.start_filter, value);
        warnings.extend(end.unproven(&spec.end_filter, value));
        let begin = matching(HistVariable::Time(variable.clone()), start_filter, None);
        let finish = matching(since, end_filter, Some(action));
        let printed = (0..keys.len()).collect();
        let result = HistTrigger {
            sums: vec![LATENCY_FIELD.to_owned()],
            ..counting(keys, HistVariable::Mark(format!("{variable}r")), rows, String::new())
        };
        let mut tables = vec![
            Table { event: start.probe.clone(), trigger: begin, role: Role::Starts },
            Table { event, trigger: result, role: Role::Result { beyond: None } },
            Table { event: end.probe.clone(), trigger: finish, role: Role::Ends },
        ];
        let certain = end.proofs.certain(&spec.end_filter);
        tables.extend(own_end.as_deref().map(|own| own_threads::table(end.probe, own, &certain, number)));
        tables.extend(start_unread.map(|filter| unread(start, "u", of_start(filter))));
        tables.extend(end_unread.map(|filter| unread(end, "w", of_end(filter))));
        Ok(Self {
            tables,
            printed,
            signed_sums: vec![false],
            synthetic: Some(synthetic),
            keys: row_keys,
            sums: vec![column(LATENCY_FIELD, None)],
            warnings,
            place: None,
        })
    }
}

/// The fields whose values are keys or sums.
fn values(spec: &HistogramSpec) -> impl Iterator<Item = &str> {
    let keys = spec.keys.iter().filter_map(|key| match &key.key {
        Some(Key::Field(key)) => Some(key.field.as_str()),
        _ => None,
    });
    keys.chain(spec.sums.iter().map(String::as_str))
}

/// The key by which starts and ends are matched. The kernel compares bytes: both must have the same
/// form.
fn match_key(spec: &LatencySpec, [start, end]: [Counted<'_>; 2]) -> Result<HistKey, Error> {
    if spec.match_field.is_empty() {
        return Ok(HistKey { field: "common_pid".to_owned(), form: KeyForm::Number });
    }
    let path = "spec.latency.match_field";
    let [first, second] = [
        field_of(start.schema, start.probe, &spec.match_field, path)?,
        field_of(end.schema, end.probe, &spec.match_field, path)?,
    ];
    if !is_integer(first.kind) || first.kind != second.kind {
        let message = format!("`{}` must be an integer of the same type in both probes", spec.match_field);
        return refuse(path, message);
    }
    Ok(HistKey { field: spec.match_field.clone(), form: KeyForm::Number })
}
