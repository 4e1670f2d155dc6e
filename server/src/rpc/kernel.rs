//! `KernelService`: functions of the kernel, their code and types, and where a probe can be placed.
//!
//! Owns the pages and the suggestions for a mistyped name. Never decides whether a place works.

use std::sync::Arc;

use kprobed_proto::v1;
use kprobed_proto::v1::kernel_service_server::KernelService;
use tonic::{Code, Request, Response, Status};

use super::access::caller;
use super::hidden;
use super::probes::page_size;
use super::services::Services;
use super::verdict::Viewer;
use kprobed_control::error::{Error, Reason};
use kprobed_control::{Probe, permission};
use kprobed_host::kernel::{KernelFacts, nearest_name};
use kprobed_lang::definition::Place;
use kprobed_lang::model::Glob;
use kprobed_verdict::message::{self, diagnostic};
use kprobed_verdict::validate::functions::{self, FunctionQuery, Meant};
use kprobed_verdict::validate::typed::{DescribeError, describe_function, describe_members};
use kprobed_verdict::validate::{self, JudgedInstruction};

/// Functions on a page, unless the client says otherwise, and at most.
const FUNCTION_PAGE: (u32, u32) = (1000, 10_000);

/// Most names that are suggested.
const SUGGESTIONS: usize = 5;

impl Services {
    fn facts(&self) -> Result<Arc<KernelFacts>, Error> {
        Ok(self.checker.recent_facts().get()?)
    }

    fn disassemble(
        &self,
        request: &v1::DisassembleFunctionRequest,
        viewer: &Viewer,
    ) -> Result<v1::DisassembleFunctionResponse, Error> {
        let place = request.function.as_str();
        if place.is_empty() || place.contains(|c: char| c.is_ascii_whitespace() || c == '#') {
            return Err(Error::bad_argument(
                "function",
                "write `[MODULE:]NAME`, the same with `+OFFSET`, or an address",
            ));
        }
        let letter = if request.kind() == v1::ProbeKind::Return { 'r' } else { 'p' };
        let definition = self.checker.parse_probe(&format!("{letter} {place}"))?;
        permission::on_place(viewer.addresses, &definition)?;
        let facts = self.facts()?;
        match functions::meant(&definition.place, &facts) {
            Meant::One { function, start, offset } => {
                let (instructions, omitted_bytes) = validate::disassembly(&definition, start, &facts);
                let ours = OurProbes::of(viewer, &function);
                let instruction = |one: JudgedInstruction| ours.instruction(one);
                let mut instructions: Vec<_> = instructions.into_iter().map(instruction).collect();
                if !viewer.addresses {
                    hidden::code(&mut instructions);
                }
                Ok(v1::DisassembleFunctionResponse {
                    instructions,
                    function: Some(function),
                    offset: u32::try_from(offset).unwrap_or(u32::MAX),
                    omitted_bytes,
                    candidates: Vec::new(),
                })
            }
            Meant::Several(candidates) => {
                Ok(v1::DisassembleFunctionResponse { candidates, ..Default::default() })
            }
            Meant::Nothing => {
                let hint = match &definition.place {
                    Place::Symbol { symbol, module, .. } => {
                        validate::suggestion(symbol, module.as_deref(), &facts)
                    }
                    Place::Address { .. } | Place::Event { .. } => String::new(),
                };
                let message = format!("the kernel has no function `{place}`");
                Err(Error::unknown(Reason::NO_SUCH_FUNCTION, ("function", place), message, &hint))
            }
        }
    }

    fn page_of_functions(
        &self,
        request: &v1::ListFunctionsRequest,
    ) -> Result<v1::ListFunctionsResponse, Error> {
        let facts = self.facts()?;
        let pattern = request.pattern.as_str();
        let glob = pattern.contains(['*', '?']).then(|| Glob::new(pattern));
        let fits =
            |name: &str| glob.as_ref().map_or_else(|| name.contains(pattern), |glob| glob.matches(name));
        let module = Some(request.module.as_str()).filter(|module| !module.is_empty());
        if let Some(module) = module.filter(|module| !facts.symbols.has_module(module)) {
            let hint = like_module(module, &facts.symbols.modules().collect::<Vec<_>>());
            let message = format!("no module `{module}` is loaded");
            return Err(Error::unknown(Reason::NO_SUCH_MODULE, ("module", module), message, &hint));
        }
        let query = FunctionQuery {
            fits: &fits,
            module,
            traceable_only: request.traceable_only,
            after: &request.page_token,
            limit: page_size(request.page_size, FUNCTION_PAGE) as usize,
        };
        let (found, more) = functions::list(&query, &facts);
        let next = found.last().filter(|_| more).map(|last| last.name.clone()).unwrap_or_default();
        let wanted = pattern.replace(['*', '?'], "");
        // A text that is so short resembles every name.
        let nothing = found.is_empty() && request.page_token.is_empty() && !wanted.is_empty();
        let similar = if nothing { functions::similar_names(&wanted, &facts) } else { Vec::new() };
        Ok(v1::ListFunctionsResponse {
            functions: found,
            next_page_token: next,
            suggestions: similar.into_iter().take(SUGGESTIONS).map(str::to_owned).collect(),
        })
    }
}

/// Describes a function, and the structure that a path from it leads to.
fn describe(
    request: &v1::DescribeFunctionRequest,
    facts: &KernelFacts,
) -> Result<v1::DescribeFunctionResponse, Error> {
    let v1::DescribeFunctionRequest { function: name, module, path } = request;
    let module = Some(module.as_str()).filter(|module| !module.is_empty());
    let failed = |error| {
        let (code, field, text, found) = match &error {
            DescribeError::Function(found) => (Code::NotFound, "function", name, found),
            DescribeError::Path(found) => (Code::InvalidArgument, "path", path, found),
        };
        Error::new(Reason { name: found.code.name(), code }, &found.message)
            .field(field)
            .diagnostics(text, vec![diagnostic(found)])
    };
    let function = describe_function(name, module, facts).map_err(failed)?;
    let structure = (!path.is_empty()).then(|| describe_members(name, module, path, facts));
    let structure = structure.transpose().map_err(failed)?;
    Ok(v1::DescribeFunctionResponse { function: Some(function), structure })
}

#[tonic::async_trait]
impl KernelService for Services {
    async fn describe_function(
        &self,
        request: Request<v1::DescribeFunctionRequest>,
    ) -> Result<Response<v1::DescribeFunctionResponse>, Status> {
        // Reads types when a client first asks for them, and the symbol table when modules have
        // changed.
        let describe = || describe(request.get_ref(), &*self.facts()?);
        Ok(Response::new(tokio::task::block_in_place(describe)?))
    }

    async fn disassemble_function(
        &self,
        request: Request<v1::DisassembleFunctionRequest>,
    ) -> Result<Response<v1::DisassembleFunctionResponse>, Status> {
        let viewer = self.viewer(caller(&request)?);
        // Reads kernel memory, and the symbol table when modules have changed.
        let code = || self.disassemble(request.get_ref(), &viewer);
        Ok(Response::new(tokio::task::block_in_place(code)?))
    }

    async fn list_functions(
        &self,
        request: Request<v1::ListFunctionsRequest>,
    ) -> Result<Response<v1::ListFunctionsResponse>, Status> {
        // Reads every symbol.
        Ok(Response::new(tokio::task::block_in_place(|| self.page_of_functions(request.get_ref()))?))
    }
}

/// Loaded modules that the client may have meant: a name that differs by a typing error, and names
/// that contain this one.
fn like_module(wanted: &str, loaded: &[&str]) -> String {
    // The kernel writes `_` for the `-` of a file's name.
    let wanted = wanted.replace('-', "_");
    let mut names: Vec<&str> = nearest_name(&wanted, loaded.iter().copied()).into_iter().collect();
    for module in loaded.iter().copied().filter(|module| module.contains(&wanted)) {
        if !names.contains(&module) && names.len() < SUGGESTIONS {
            names.push(module);
        }
    }
    if names.is_empty() {
        return "`lsmod` lists the loaded modules; functions of the kernel itself have none".to_owned();
    }
    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    format!("did you mean {}?", names.join(" or "))
}

/// The probes of this daemon in one function that a caller may look at.
struct OurProbes {
    /// By their offsets.
    probes: Vec<(u32, Arc<Probe>)>,
    /// Whether there are no others that the caller may not look at.
    are_all: bool,
}

impl OurProbes {
    fn of(viewer: &Viewer, function: &v1::Function) -> Self {
        let v1::Function { name, module, .. } = function;
        let function = if module.is_empty() { name.clone() } else { format!("{module}:{name}") };
        let here = |probe: Arc<Probe>| {
            let (name, offset) = probe.location.rsplit_once("+0x")?;
            let offset = u32::from_str_radix(offset, 16).ok().filter(|_| name == function)?;
            viewer.sight.shows(&probe).then_some((offset, probe))
        };
        let probes = viewer.registry.all().into_iter().filter_map(here).collect();
        Self { probes, are_all: viewer.sight.is_everything() }
    }

    fn instruction(&self, judged: JudgedInstruction) -> v1::CodeInstruction {
        let JudgedInstruction { instruction, boundary, entry, verdict, probed } = judged;
        let here = self.probes.iter().filter(|(offset, _)| *offset == instruction.offset);
        let probes: Vec<_> = here.map(|(_, probe)| probe.name.to_string()).collect();
        let refusal = verdict.as_ref().err();
        v1::CodeInstruction {
            offset: instruction.offset,
            code: instruction.bytes,
            text: instruction.text,
            boundary,
            entry,
            probeable: refusal.is_none(),
            rule: refusal.map_or("", |refusal| refusal.code.name()).to_owned(),
            refusal: refusal.map(|refusal| refusal.message.clone()).unwrap_or_default(),
            arming: verdict.map_or(v1::Arming::Unspecified, message::arming).into(),
            // The code is shown as it is without probes. A probe that the caller may not know of can be among
            // those that are registered.
            probed: probed && (self.are_all || !probes.is_empty()),
            probes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprobed_control::samples::probe as test_probe;
    use kprobed_host::insn::Instruction;
    use kprobed_verdict::validate::Arming;

    #[test]
    fn a_place_does_not_tell_of_a_probe_that_is_hidden() {
        let judged = |probed| JudgedInstruction {
            instruction: Instruction { offset: 5, bytes: vec![0x90], text: "nop".to_owned() },
            boundary: true,
            entry: false,
            verdict: Ok(Arming::Breakpoint),
            probed,
        };
        let shown = Arc::new(test_probe(1, "kprobes/shown"));
        for (probes, are_all, told) in
            [(vec![], true, true), (vec![], false, false), (vec![(5, Arc::clone(&shown))], false, true)]
        {
            let ours = OurProbes { probes, are_all };
            assert_eq!(ours.instruction(judged(true)).probed, told);
            assert!(!ours.instruction(judged(false)).probed);
        }
        // A probe that is shown and lies elsewhere says nothing about this place.
        let elsewhere = OurProbes { probes: vec![(6, shown)], are_all: false };
        assert!(!elsewhere.instruction(judged(true)).probed);
    }

    #[test]
    fn modules_that_may_have_been_meant() {
        let like = |wanted: &str| like_module(wanted, &["btrfs", "nf_nat", "nf_conntrack", "nfs"]);
        assert_eq!(like("btfrs"), "did you mean `btrfs`?");
        assert_eq!(like("nf-nat"), "did you mean `nf_nat`?");
        assert_eq!(like("nf_"), "did you mean `nfs` or `nf_nat` or `nf_conntrack`?");
        assert!(like("something_else").contains("`lsmod`"));
    }
}
