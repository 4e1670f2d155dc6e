//! What a kernel has, for the reader of definitions: looked up when a definition needs it.
//!
//! Owns the record that it was asked, on which the validity of what was read depends. Never reads a definition.

use std::cell::{OnceCell, RefCell};
use std::sync::{Arc, Weak};

use super::text::Asked;
use crate::validate::functions::{self, FunctionQuery};
use crate::validate::typed::{self, system_call};
use kprobed_host::kernel::{FactsCache, KernelFacts};
use kprobed_lang::definition::short::{KernelNames, KnownFunction, MatchingFunctions, SystemCall};
use kprobed_lang::definition::{Features, Parameters};
use kprobed_lang::model::Glob;

/// The kernel of a cache of facts.
pub(super) struct KnownKernel<'a> {
    facts: &'a FactsCache,
    features: &'a Features,
    asked: RefCell<Asked>,
    tells_programs: OnceCell<bool>,
}

impl<'a> KnownKernel<'a> {
    pub(super) fn new(facts: &'a FactsCache, features: &'a Features) -> Self {
        Self { facts, features, asked: RefCell::new(Asked::Nothing), tells_programs: OnceCell::new() }
    }

    /// The facts that were asked for.
    pub(super) fn into_asked(self) -> Asked {
        self.asked.into_inner()
    }

    fn facts(&self) -> Option<Arc<KernelFacts>> {
        let facts = self.facts.current().ok();
        self.asked.replace(Asked::Facts(facts.as_ref().map_or_else(Weak::new, Arc::downgrade)));
        facts
    }
}

impl Parameters for KnownKernel<'_> {
    fn has(&self, module: Option<&str>, function: &str, name: &str) -> Option<bool> {
        typed::has_parameter(&*self.facts()?, module, function, name)
    }

    fn found_by_kernel(&self, module: Option<&str>, function: &str) -> Option<bool> {
        typed::kernel_finds_parameters(&*self.facts()?, module, function)
    }
}

impl KernelNames for KnownKernel<'_> {
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
        let mut matching = MatchingFunctions::default();
        for function in found {
            let is_good = function.traceable && !function.blacklisted;
            match function.place.filter(|place| is_good && place.ends_with(function.name.as_str())) {
                Some(_) => matching.places.push((function.module, function.name)),
                None => matching.left_out += 1,
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
