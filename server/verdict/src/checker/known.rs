//! What a kernel has, for the reader of definitions: looked up when a definition needs it.
//!
//! Owns the record that it was asked, on which the validity of what was read depends. Never reads a definition.

use std::cell::{OnceCell, RefCell};
use std::sync::{Arc, Weak};

use crate::validate;
use crate::validate::functions::{self, FunctionQuery};
use crate::validate::typed::{self, system_call};
use kprobed_host::kernel::{FactsCache, KernelFacts};
use kprobed_lang::definition::short::{
    EXPANSION_MAX_LINES, KernelNames, KnownFunction, MatchingFunctions, SystemCall,
};
use kprobed_lang::definition::{Definition, Features, parse};
use kprobed_lang::model::Glob;
use kprobed_proto::v1;

/// The kernel of a cache of facts.
pub(super) struct KnownKernel<'a> {
    facts: &'a FactsCache,
    features: &'a Features,
    asked: RefCell<Option<Weak<KernelFacts>>>,
    tells_programs: OnceCell<bool>,
}

impl<'a> KnownKernel<'a> {
    pub(super) fn new(facts: &'a FactsCache, features: &'a Features) -> Self {
        Self { facts, features, asked: RefCell::default(), tells_programs: OnceCell::new() }
    }

    /// The facts that were asked for, if any; dangling if they could not be read.
    pub(super) fn into_asked(self) -> Option<Weak<KernelFacts>> {
        self.asked.into_inner()
    }

    fn facts(&self) -> Option<Arc<KernelFacts>> {
        let facts = self.facts.current().ok();
        self.asked.replace(Some(facts.as_ref().map_or_else(Weak::new, Arc::downgrade)));
        facts
    }
}

impl KernelNames for KnownKernel<'_> {
    fn has_parameter(&self, module: Option<&str>, function: &str, name: &str) -> Option<bool> {
        typed::has_parameter(&*self.facts()?, module, function, name)
    }

    fn finds_parameters(&self, module: Option<&str>, function: &str) -> Option<bool> {
        typed::kernel_finds_parameters(&*self.facts()?, module, function)
    }

    fn has_function(&self, module: Option<&str>, name: &str) -> Option<bool> {
        let facts = self.facts()?;
        Some(facts.symbols.named(name, module).any(|symbol| symbol.is_code()))
    }

    fn functions(&self, module: Option<&str>, glob: &str) -> MatchingFunctions {
        let Some(facts) = self.facts() else { return MatchingFunctions::default() };
        let glob = Glob::new(glob);
        let fits = |name: &str| glob.matches(name);
        let query =
            FunctionQuery { fits: &fits, module, traceable_only: false, after: "", limit: usize::MAX };
        let (found, _) = functions::list(&query, &facts);
        // So many are refused: it does not matter whether each of them works.
        let is_judged = found.len() <= EXPANSION_MAX_LINES;
        let works = |place: &str| match parse(&format!("p {place}"), self.features) {
            Ok(Definition::Probe(probe)) if is_judged => {
                let report = validate::check(&probe, &facts);
                report.refusal.is_none() && report.objection.is_none()
            }
            Ok(_) => true,
            Err(_) => false,
        };
        let mut matching = MatchingFunctions::default();
        for v1::Function { name, module, traceable, blacklisted, place, .. } in found {
            if traceable && !blacklisted && place.ends_with(name.as_str()) && works(&place) {
                matching.places.push((Some(module).filter(|module| !module.is_empty()), name));
            } else {
                matching.left_out += 1;
            }
        }
        matching
    }

    fn has_module(&self, name: &str) -> bool {
        self.facts().is_some_and(|facts| facts.symbols.has_module(name))
    }

    fn events(&self) -> Option<Vec<String>> {
        self.facts()?.host_events()
    }

    fn function(&self, module: Option<&str>, name: &str) -> Option<KnownFunction> {
        let facts = self.facts()?;
        let types = || facts.types.vmlinux().is_ok_and(|btf| typed::tells_programs_memory(&btf));
        let tells_programs = || *self.tells_programs.get_or_init(types);
        typed::known_function(&facts, self.features, (module, name), &tells_programs)
    }

    fn system_call(&self, name: &str) -> Option<SystemCall> {
        system_call::known(name, &*self.facts()?)
    }
}
