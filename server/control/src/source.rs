//! Event sources: made of the kernel's description of an event.
//!
//! Owns the numbering of schemas, and what a probe's definition adds to its format. Never decodes
//! an event.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::controller::ControllerParts;
use crate::error::{Error, Reason};
use crate::store::Record;
use kprobed_host::kernel::RecentFacts;
use kprobed_host::tracefs::Tracefs;
use kprobed_host::tracefs::format::Format;
use kprobed_lang::definition::computed::Computed;
use kprobed_lang::definition::{Argument, BaseType, BtfRoot, FetchKind, ProbeDefinition, guard};
use kprobed_lang::model::ProbeName;
use kprobed_trace::decode::{CompileOptions, CompiledFormat, Notation, STACK_FIELD, Schema};
use kprobed_trace::pipeline::EventSource;
use kprobed_verdict::checker::{CheckError, Checker, DefinitionText};

/// Schemas are numbered through one run of the daemon.
static NEXT_SCHEMA_ID: AtomicU32 = AtomicU32::new(1);

/// How the kernel describes an event.
pub(super) fn read_format(tracefs: &Tracefs, name: &ProbeName) -> Result<Format, Error> {
    let text = tracefs.format_text(name.group(), name.event())?;
    Format::parse(&text).map_err(|error| bad_format(name, &error))
}

/// How people write the numbers of fields.
pub(super) type Notations = HashMap<String, Notation>;

/// What the definition of a probe that the kernel has says about its events. If it is refused now, numbers are shown as
/// they are.
pub(super) fn of_stored(
    checker: &Checker,
    text: &Arc<DefinitionText>,
    facts: &mut RecentFacts<'_>,
) -> Result<(ProbeDefinition, Notations), CheckError> {
    match checker.check_text(text, facts) {
        Ok(outcome) if outcome.is_taken() => {
            let notations = outcome.notations();
            Ok((outcome.definition, notations))
        }
        _ => Ok((checker.probe(text)?, Notations::new())),
    }
}

/// Makes a source of a probe's event as the kernel describes it.
pub(super) fn event_source(
    ControllerParts { mounted, checker, .. }: &ControllerParts,
    record: &Record,
    (definition, notations): (&ProbeDefinition, &Notations),
) -> Result<Arc<EventSource>, Error> {
    let name = &record.name;
    let options = if definition.is_of_host_event() {
        options_of_host_event(&mounted.tracefs, checker, name)?
    } else {
        CompileOptions { notations: notations.clone(), ..compile_options(definition) }
    };
    let options = CompileOptions { stack: record.spec.stack, ..options };
    let plan = compiled(&mounted.tracefs, name, &options)?;
    let schema_id = NEXT_SCHEMA_ID.fetch_add(1, Ordering::Relaxed);
    let source = EventSource::new(schema_id, record.uid, name.clone(), plan);
    source.origin.set_labels(record.spec.labels.clone());
    Ok(Arc::new(source))
}

/// The fields of an event of the host.
pub fn host_event_fields(
    tracefs: &Tracefs,
    checker: &Checker,
    name: &ProbeName,
) -> Result<Arc<Schema>, Error> {
    let plan = compiled(tracefs, name, &options_of_host_event(tracefs, checker, name)?)?;
    Ok(Arc::clone(plan.schema()))
}

fn compiled(tracefs: &Tracefs, name: &ProbeName, options: &CompileOptions) -> Result<CompiledFormat, Error> {
    let format = read_format(tracefs, name)?;
    let recorded = format.fields.iter().map(|field| field.name.as_str());
    let made =
        options.computed.iter().map(Computed::name).chain(options.paths.iter().map(|path| &*path.name));
    let mut names = recorded.chain(made);
    if options.stack && names.any(|name| name == STACK_FIELD) {
        let message = format!(
            "`{name}` has a field `{STACK_FIELD}` already, so that its call stack would have no name"
        );
        return Err(Error::bad_argument("stack", message));
    }
    CompiledFormat::compile(&format, options).map_err(|error| bad_format(name, &error))
}

/// What the format of an event of the host does not say. If it is a kprobe of another program, its definition says
/// which fields are not read from memory. It has the kernel's own way with names of symbols.
fn options_of_host_event(
    tracefs: &Tracefs,
    checker: &Checker,
    name: &ProbeName,
) -> Result<CompileOptions, Error> {
    let list = tracefs.kprobe_list()?;
    let definition = list.lines_of(name).next().and_then(|line| checker.parse_probe(line).ok());
    let options = definition.map(|definition| compile_options(&definition)).unwrap_or_default();
    // The kernel writes the address itself where there is no symbol.
    let notations = options.named.iter().map(|name| (name.clone(), Notation::Symbol)).collect();
    Ok(CompileOptions { named: HashSet::new(), notations, ..options })
}

/// What the format of a probe does not say: which fields cannot fault, since they are not read from
/// memory, which may not be what their names say, and which addresses the daemon names because the
/// kernel cannot do it safely.
fn compile_options(definition: &ProbeDefinition) -> CompileOptions {
    let names = |wanted: &dyn Fn(&Argument) -> bool| {
        definition.args.iter().filter(|argument| wanted(argument)).filter_map(field_name).collect()
    };
    let has_parameters = definition.args.iter().any(|arg| matches!(arg.fetch.kind, FetchKind::AllArguments));
    CompileOptions {
        infallible: names(&|argument| !guard::reads_memory(argument)),
        unproven: names(&|argument| guard::register_at_return(definition, argument).is_some()),
        named: names(&|argument| argument.base_type() == BaseType::SymbolString),
        stack: false,
        besides_parameters: has_parameters.then(|| names(&|_| true)),
        notations: Notations::new(),
        computed: definition.computed.clone(),
        paths: definition.paths.clone(),
    }
}

/// The field of an argument, if the definition says what it is called.
fn field_name(argument: &Argument) -> Option<String> {
    match (&argument.name, &argument.fetch.kind) {
        (Some(name), _) => Some(name.text.clone()),
        // The name is too long to be written, so the kernel makes one.
        (None, FetchKind::Btf { root: BtfRoot::Parameter(name), members }) if members.is_empty() => {
            Some(name.clone())
        }
        _ => None,
    }
}

/// The kernel describes an event in a way that is not understood.
fn bad_format(name: &ProbeName, why: &impl std::fmt::Display) -> Error {
    let message = format!("the kernel describes `{name}` in a way that is not understood: {why}");
    Error::of_probe(Reason::BAD_FORMAT, name, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprobed_lang::definition::{Definition, Features, parse};

    #[test]
    fn registers_of_arguments_are_unproven_at_a_return() {
        let options = |text: &str| match parse(text, &Features::from_readme("ustring")) {
            Ok(Definition::Probe(definition)) => compile_options(&definition.with_explicit_names()),
            other => panic!("{other:?}"),
        };
        let found =
            options("r:g/e f a=%si b=+0(%di):ustring c=+8(+16(%r9)):u8 d=$retval e=%bx f=$stack1 g=%ax");
        let mut unproven: Vec<_> = found.unproven.into_iter().collect();
        unproven.sort();
        assert_eq!(unproven, ["a", "b", "c"]);
        assert!(options("p:g/e f a=%si b=+0(%di):ustring").unproven.is_empty());
    }
}
