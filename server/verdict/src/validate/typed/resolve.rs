//! Resolution of a whole definition: all of its names, and the findings about them.
//!
//! Owns the order of the kernel's steps. Never chooses a default type or follows a path itself.

use super::default::{self, Text};
use super::expand::Expansion;
use super::function::{self, Function, Parameter, Unknown};
use super::passing::Words;
use super::path::{self, Value};
use super::whole_path::WholePath;
use super::{notation, problems, system_call, whole_path};
use kprobed_filter::Notation;
use kprobed_host::kernel::KernelFacts;
use kprobed_host::kernel::btf::{BtfError, TypeId};
use kprobed_lang::definition::{
    ARGUMENT_NAME_MAX_BYTES, Argument, ArgumentStep, BtfMember, BtfRoot, Code, Diagnostic, Features, Fetch,
    FetchKind, Name, PartStep, Place, ProbeDefinition, Span, Step, Type, exceeded_limits, name_members,
};

/// An argument that was resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Index of the argument in the resolved definition.
    pub index: usize,
    /// The written name or path.
    pub path: String,
    /// Its declaration in C, such as `const unsigned char *name`.
    pub declaration: String,
    /// How people write its numbers.
    pub notation: Notation,
}

/// A definition as every kernel reads it.
#[derive(Clone, Debug)]
pub struct Resolution {
    /// Without words that need BTF, as far as these could be resolved.
    pub definition: ProbeDefinition,
    /// What was resolved.
    pub notes: Vec<Note>,
    /// The problems, each with the step of the kernel.
    pub findings: Vec<Diagnostic>,
    /// For each argument of the resolved definition, its index before.
    origins: Vec<usize>,
}

impl Resolution {
    fn unchanged(definition: &ProbeDefinition) -> Self {
        let definition = definition.clone();
        Self { definition, notes: Vec::new(), findings: Vec::new(), origins: Vec::new() }
    }

    /// The same, if the definition has no path, which is read by the kernel's types.
    fn without_paths(definition: &ProbeDefinition, why: &str) -> Self {
        let refused = |(index, argument): (usize, &Argument)| {
            let ty = argument.ty.filter(|_| argument.is_path())?;
            let problem = Diagnostic::error(Code::NoBtfEntry, ty.span, format!("no path can be read: {why}"))
                .with_hint("probe the function by its name, with a parameter that is a `struct file *`");
            Some(problem.at(Step::Argument(index, ArgumentStep::Fit)))
        };
        let findings = definition.args.iter().enumerate().filter_map(refused).collect();
        Self { findings, ..Self::unchanged(definition) }
    }

    /// The kernel's limits that the line without names exceeds. Judges only what was resolved: the
    /// parser has judged the written text.
    pub fn exceeded_limits(&self, features: &Features) -> Vec<Diagnostic> {
        if self.origins.is_empty() {
            return Vec::new();
        }
        let mut found = exceeded_limits(&self.definition.clone().with_explicit_names(), features);
        for problem in &mut found {
            if let Step::Argument(index, step) = &mut problem.step {
                *index = self.origins.get(*index).copied().unwrap_or(*index);
                // The line is made of what was parsed.
                *step = (*step).max(ArgumentStep::Fit);
            }
        }
        found
    }
}

/// Resolves a definition for the running kernel.
///
/// # Errors
/// The problems, in the order of the kernel's steps.
pub fn resolve(
    definition: &ProbeDefinition,
    facts: &KernelFacts,
    features: &Features,
) -> Result<Resolution, Vec<Diagnostic>> {
    let mut names = resolve_names(definition, facts, features);
    if names.findings.is_empty() {
        names.findings = names.exceeded_limits(features);
    }
    if names.findings.is_empty() { Ok(names) } else { Err(names.findings) }
}

/// Looks up the names of a definition, of which arguments may be parsed only in part.
pub fn resolve_names(definition: &ProbeDefinition, facts: &KernelFacts, features: &Features) -> Resolution {
    let native = features.btf_args;
    let Place::Symbol { module, symbol, .. } = &definition.place else {
        return Resolution::without_paths(definition, "the types of what an address holds are not known");
    };
    if !definition.args.iter().any(|argument| needs_types(argument, native)) {
        return Resolution::unchanged(definition);
    }
    // This kernel resolves names by itself, but shows its types to no program.
    if native && facts.types.vmlinux().is_err() {
        return Resolution::without_paths(definition, "this kernel does not show its types");
    }
    let look_up = if native { function::look_up_natively } else { function::look_up };
    let function = look_up(symbol, module.as_deref(), facts);
    let function = function.map_err(|unknown| function::at_distance(unknown, &definition.place, facts));
    let is_expanded = |argument: &Argument| {
        argument.name.is_none()
            && matches!(argument.fetch.kind, FetchKind::Argument(_) | FetchKind::AllArguments)
    };
    let mut findings = Vec::new();
    let mut expansion = Expansion::new(function.as_ref(), native);
    let mut args = Vec::with_capacity(definition.args.len());
    for (index, argument) in definition.args.iter().enumerate() {
        match expansion.expand(index, argument) {
            Ok(expanded) => args.extend(expanded.into_iter().map(|argument| (index, argument))),
            Err(problem) => findings.push(problem),
        }
    }
    let (indices, mut args): (Vec<usize>, Vec<Argument>) = args.into_iter().unzip();
    name_members(&mut args);
    let args: Vec<_> = indices.into_iter().zip(args).collect();
    if native && !findings.is_empty() {
        // No argument is read then.
        return Resolution { findings, ..Resolution::unchanged(definition) };
    }
    let mut resolver = Resolver {
        function: function.as_ref(),
        facts,
        features,
        loaded: native && function.is_ok() && definition.args.iter().any(is_expanded),
        argument: 0,
        notes: Vec::new(),
        warnings: Vec::new(),
    };
    let (mut resolved, mut origins) = (Vec::with_capacity(args.len()), Vec::with_capacity(args.len()));
    let (mut taken, mut paths) = (Vec::with_capacity(args.len()), Vec::new());
    let mut first_note = None;
    for (index, argument) in &args {
        // Before it parses the expression, the kernel checks whether the name is free: an expansion
        // of `$arg*` may have it.
        if let Some(name) = argument.own_name() {
            if taken.contains(&name) {
                let message = format!("there is another argument `{name}`");
                let step = if native {
                    Step::Argument(*index, ArgumentStep::Name)
                } else {
                    Step::part(*index, argument.span.start, PartStep::LookUp)
                };
                findings.push(Diagnostic::error(Code::UsedArgName, argument.span, message).at(step));
                continue;
            }
            taken.push(name);
        }
        resolver.argument = *index;
        if argument.is_path() {
            let fits = |part: &Argument| {
                let args = vec![part.clone()];
                exceeded_limits(&ProbeDefinition { args, ..definition.clone().place_alone() }, features)
                    .is_empty()
            };
            match resolver.whole_path(resolved.len(), argument, &fits) {
                Ok(path) => {
                    first_note = first_note.or(Some((*index, argument.fetch.span.start)));
                    origins.extend(path.parts.iter().map(|_part| *index));
                    resolved.extend(path.parts);
                    paths.push(path.field);
                }
                Err(problem) => findings.push(problem),
            }
            continue;
        }
        match resolver.argument(resolved.len(), argument) {
            Ok(argument) => {
                if !resolver.notes.is_empty() {
                    first_note = first_note.or(Some((*index, argument.fetch.span.start)));
                }
                resolved.push(argument);
                origins.push(*index);
            }
            Err(problem) => findings.push(problem),
        }
    }
    let Resolver { notes, mut warnings, .. } = resolver;
    if let Ok(function) = &function
        && !function.others.is_empty()
        && let Some((index, at)) = first_note
    {
        let problem = problems::ambiguous(definition.place.span(), function, !native);
        if native {
            warnings.push(problem);
        } else {
            findings.push(problem.at(Step::part(index, at, PartStep::LookUp)));
        }
    }
    findings.sort_by_key(|finding| finding.step);
    let mut definition = ProbeDefinition { args: resolved, paths, ..definition.clone() };
    definition.warnings.extend(warnings);
    definition.warnings.sort_by_key(|warning| warning.span);
    Resolution { definition, notes, findings, origins }
}

/// Whether an argument needs BTF.
fn needs_types(argument: &Argument, native: bool) -> bool {
    if argument.is_path() {
        return true;
    }
    let fetch = argument.fetch.root();
    match fetch.kind {
        FetchKind::Btf { .. } | FetchKind::AllArguments => true,
        FetchKind::Retval => native || is_bare_result(argument),
        FetchKind::Argument(_) => {
            native && argument.name.is_none() && std::ptr::eq(fetch, &raw const argument.fetch)
        }
        _ => false,
    }
}

/// A whole result without a type.
fn is_bare_result(argument: &Argument) -> bool {
    argument.fetch.kind == FetchKind::Retval && argument.ty.is_none()
}

struct Resolver<'a> {
    function: Result<&'a Function, &'a Unknown>,
    facts: &'a KernelFacts,
    features: &'a Features,
    /// Whether the kernel has already looked up the function's types, which changes its message for
    /// a function without parameters.
    loaded: bool,
    /// Index of the present argument in the text.
    argument: usize,
    notes: Vec<Note>,
    warnings: Vec<Diagnostic>,
}

/// An expression, and the type of its value if BTF has one.
struct Resolved {
    fetch: Fetch,
    value: Option<Value>,
    /// Words of the parameter, of which one is read; 1 for any other value.
    words: u32,
}

impl Resolver<'_> {
    fn argument(&mut self, index: usize, argument: &Argument) -> Result<Argument, Diagnostic> {
        let resolved = match self.function {
            // The kernel takes any number there, and would record 64 bits without a sign.
            Ok(function)
                if !self.features.btf_args && is_bare_result(argument) && function.has_one_result() =>
            {
                self.result(function, &argument.fetch, &[])?
            }
            _ => self.fetch(&argument.fetch)?,
        };
        // The expression was parsed: any problem now is that it does not fit.
        let misfit = Step::Argument(self.argument, ArgumentStep::Fit);
        self.typed(index, argument, resolved).map_err(|problem| problem.at(misfit))
    }

    fn typed(
        &mut self,
        index: usize,
        argument: &Argument,
        resolved: Resolved,
    ) -> Result<Argument, Diagnostic> {
        let native = self.features.btf_args;
        let written = argument.fetch.to_string();
        let Resolved { fetch, value, words } = resolved;
        let mut resolved = Argument { fetch, ..argument.clone() };
        if argument.name.is_none()
            && let Some(name) = argument.own_name()
        {
            let text: String = name.chars().take(ARGUMENT_NAME_MAX_BYTES).collect();
            resolved.name = Some(Name { text, span: Span::point(argument.span.start) });
        }
        let Some(value) = value else {
            let is_value = matches!(resolved.fetch.kind, FetchKind::Argument(_) | FetchKind::Retval);
            return match argument.ty.filter(|ty| is_value && ty.base.is_pointed_text()) {
                Some(ty) => Err(problems::no_memory(ty.span)),
                None => Ok(resolved),
            };
        };
        let Ok(function) = self.function else { return Ok(resolved) };
        let btf = &function.btf;
        let broken = |error: BtfError| problems::broken(argument.fetch.span, &error);
        match argument.ty {
            Some(ty) if ty.base.is_pointed_text() => {
                match default::text(btf, value.ty, native).map_err(broken)? {
                    Text::Here => {}
                    Text::Pointed => resolved.fetch = resolved.fetch.followed(0),
                    Text::Mistaken => {
                        if !system_call::is_register(function, &argument.fetch.kind) {
                            self.warnings.push(problems::followed_number(argument.fetch.span, &written));
                        }
                        resolved.fetch = resolved.fetch.followed(0);
                    }
                    // Here the daemon decides.
                    Text::No if !native && system_call::is_register(function, &argument.fetch.kind) => {
                        resolved.fetch = resolved.fetch.followed(0);
                    }
                    Text::No => return Err(problems::no_text(btf, value.ty, &written, argument.fetch.span)),
                }
            }
            Some(_) if value.bits.is_some() => {
                self.warnings.push(problems::whole_bytes(argument.fetch.span, &written));
            }
            Some(_) => {}
            None => {
                let chosen = if value.bits.is_some() {
                    path::bit_field(btf, &value).map(|(fetch, base)| {
                        resolved.fetch = fetch;
                        (base, None, false)
                    })
                } else {
                    let in_memory = matches!(value.fetch.kind, FetchKind::Deref { .. });
                    let chosen = default::of(btf, value.ty, in_memory).map_err(broken)?;
                    Some((chosen.base, chosen.count, chosen.partial || words > 1))
                };
                let Some((base, count, partial)) = chosen else {
                    let message = format!("the bit-field `{written}` lies across more than 8 bytes");
                    return Err(Diagnostic::error(Code::BadBitfield, argument.fetch.span, message));
                };
                let ty = Type { base, count, span: Span::point(argument.span.end) };
                if partial {
                    let text = btf.type_text(value.ty).map_err(broken)?;
                    self.warnings.push(problems::partial(argument.fetch.span, &text, &ty.to_string()));
                }
                resolved.ty = Some(ty);
            }
        }
        // Some names are shorter than their numbers: if the kernel accepts them, it gets them.
        if native && self.is_too_long(&resolved) && !self.is_too_long(argument) && !function.is_shifted() {
            return Ok(Argument { name: resolved.name, ..argument.clone() });
        }
        let declared = written.rsplit(['>', '.']).next().unwrap_or_default();
        let name = if declared == "$retval" { "" } else { declared.split('[').next().unwrap_or_default() };
        let declaration = btf.declaration(value.ty, name).map_err(broken)?;
        let is_result = resolved.fetch.kind == FetchKind::Retval;
        let notation = notation::of(btf, value.ty, &resolved, is_result).map_err(broken)?;
        self.notes.push(Note { index, path: written, declaration, notation });
        Ok(resolved)
    }

    /// The parts of an argument of the type `path`, of which the first gets this index.
    fn whole_path(
        &mut self,
        index: usize,
        argument: &Argument,
        fits: &dyn Fn(&Argument) -> bool,
    ) -> Result<WholePath, Diagnostic> {
        let (fetch, misfit) = (&argument.fetch, Step::Argument(self.argument, ArgumentStep::Fit));
        let function = self.function.map_err(|unknown| problems::unknown(fetch.span, unknown).at(misfit))?;
        let resolved = match &fetch.kind {
            FetchKind::Retval => self.result(function, fetch, &[])?,
            FetchKind::Argument(number) => {
                let is_it =
                    |parameter: &&Parameter| parameter.words.is_some_and(|words| words.first == *number);
                let parameter = function.parameters.iter().find(is_it);
                let value =
                    parameter.map(|parameter| Value { fetch: fetch.clone(), ty: parameter.ty, bits: None });
                Resolved { fetch: fetch.clone(), value, words: 1 }
            }
            _ => self.fetch(fetch)?,
        };
        let image = self.facts.types.vmlinux();
        let (Some(value), Ok(image)) = (resolved.value, image) else {
            let message = format!("the type of `{fetch}` is not known, so that no path can be read");
            let hint = "name a parameter, or a member of one, that is a `struct file *`";
            return Err(Diagnostic::error(Code::BadType, fetch.span, message).with_hint(hint).at(misfit));
        };
        let name = match (argument.own_name(), &fetch.kind) {
            (Some(name), _) => name.to_owned(),
            (None, FetchKind::Btf { members, .. }) => {
                members.last().map_or_else(String::new, |member| member.name.clone())
            }
            (None, _) => format!("arg{}", self.argument + 1),
        };
        let path = whole_path::expand((&function.btf, &image), &value, argument, &name, fits)
            .map_err(|problem| problem.at(misfit))?;
        let broken = |error: BtfError| problems::broken(fetch.span, &error);
        let declaration = function.btf.declaration(value.ty, &name).map_err(broken)?;
        self.notes.push(Note { index, path: fetch.to_string(), declaration, notation: Notation::Number });
        Ok(path)
    }

    /// The step at which the kernel looks up the function, its parameter or its result.
    fn looked_up(&self, fetch: &Fetch) -> Step {
        Step::part(self.argument, fetch.span.start, PartStep::LookUp)
    }

    fn is_too_long(&self, argument: &Argument) -> bool {
        Argument { name: None, ..argument.clone() }.to_string().len() > self.features.expression_max_bytes
    }

    fn fetch(&mut self, fetch: &Fetch) -> Result<Resolved, Diagnostic> {
        let untyped = |fetch: Fetch| Resolved { fetch, value: None, words: 1 };
        match &fetch.kind {
            FetchKind::Deref { user, offset, inner } => {
                let inner = Box::new(self.fetch(inner)?.fetch);
                let kind = FetchKind::Deref { user: *user, offset: *offset, inner };
                Ok(untyped(Fetch { kind, span: fetch.span }))
            }
            FetchKind::Retval if self.features.btf_args => match self.function {
                Ok(function) => self.result(function, fetch, &[]),
                Err(_) => Ok(untyped(fetch.clone())),
            },
            FetchKind::Btf { root: BtfRoot::Retval, members } => match self.function {
                Ok(function) => self.result(function, fetch, members),
                Err(unknown) => {
                    let start = fetch.span.start + "$retval".len();
                    let first = path::placed(members, start).first().map_or(fetch.span, |(_, at)| *at);
                    Err(problems::unknown(first, unknown).at(self.looked_up(fetch)))
                }
            },
            FetchKind::Btf { root: BtfRoot::Parameter(name), members } => {
                self.parameter(fetch, name, members)
            }
            _ => Ok(untyped(fetch.clone())),
        }
    }

    fn result(
        &mut self,
        function: &Function,
        fetch: &Fetch,
        members: &[BtfMember],
    ) -> Result<Resolved, Diagnostic> {
        self.loaded = true;
        if function.result == TypeId::VOID {
            return Err(problems::no_result(fetch.span, function).at(self.looked_up(fetch)));
        }
        let root = Fetch { kind: FetchKind::Retval, span: fetch.span };
        let start = fetch.span.start + "$retval".len();
        let value = path::follow(&function.btf, root, function.result, members, start, self.argument)?;
        Ok(Resolved { fetch: value.fetch.clone(), value: Some(value), words: 1 })
    }

    fn parameter(
        &mut self,
        fetch: &Fetch,
        name: &str,
        members: &[BtfMember],
    ) -> Result<Resolved, Diagnostic> {
        let looked_up = self.looked_up(fetch);
        let unknown = |unknown| problems::unknown(fetch.span, unknown).at(looked_up);
        let function = self.function.map_err(unknown)?;
        let first_time = !std::mem::replace(&mut self.loaded, true);
        if function.parameters.is_empty() && first_time {
            let message = format!("`{}` has no parameters", function.name);
            return Err(Diagnostic::error(Code::NoBtfEntry, fetch.span, message)
                .with_hint("write NAME=$argN:TYPE, or a register")
                .at(looked_up));
        }
        let Some(parameter) = function.parameter(name) else {
            return Err(problems::no_parameter(fetch.span, function, name, self.facts).at(looked_up));
        };
        let Some(Words { first, count }) = parameter.words else {
            return Err(problems::not_readable(fetch.span, function, name).at(looked_up));
        };
        let root = Fetch { kind: FetchKind::Argument(first), span: fetch.span };
        let start = fetch.span.start + name.len();
        let value = path::follow(&function.btf, root, parameter.ty, members, start, self.argument)?;
        let words = if members.is_empty() { count } else { 1 };
        Ok(Resolved { fetch: value.fetch.clone(), value: Some(value), words })
    }
}

impl Function {
    /// Whether it returns a value, and no other function of the name can return another.
    fn has_one_result(&self) -> bool {
        self.others.is_empty() && self.result != TypeId::VOID
    }

    /// Whether a parameter is at another place than its number says.
    fn is_shifted(&self) -> bool {
        let mut numbered = self.parameters.iter().zip(1..);
        numbered.any(|(parameter, number)| parameter.words.is_some_and(|words| words.first != number))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use kprobed_host::kernel::btf::Btf;
    use kprobed_host::samples::BtfWriter;

    #[test]
    fn a_parameter_behind_one_in_no_register_is_shifted() {
        let is_shifted = |places: &[Option<Words>]| {
            let mut w = BtfWriter::default();
            let ty = w.int("int", 4, true);
            let function = Function {
                btf: Arc::new(Btf::parse(w.finish()).unwrap()),
                name: String::new(),
                module: None,
                id: TypeId::VOID,
                result: TypeId::VOID,
                parameters: places
                    .iter()
                    .map(|words| Parameter { name: String::new(), ty, words: *words })
                    .collect(),
                others: Vec::new(),
            };
            function.is_shifted()
        };
        let word = |first| Some(Words { first, count: 1 });
        assert!(!is_shifted(&[word(1), word(2), None]));
        assert!(is_shifted(&[None, word(1)]));
        assert!(is_shifted(&[Some(Words { first: 1, count: 2 }), word(3)]));
    }
}
