//! Tests of definitions that are given as fields.

mod fields;
mod parsed_once;
mod properties;
mod refused;
mod service;
mod statuses;
#[path = "../../../../fixtures/strategies.rs"]
mod strategies;
#[allow(dead_code, clippy::allow_attributes, reason = "other tests need more of it")]
#[path = "../../../../fixtures/world.rs"]
mod world;

use kprobed_proto::v1;
use kprobed_proto::v1::fetch::Source;

use super::{Arc, Checker, Given, GivenError, Unwritable, write};
use kprobed_host::kernel::{FactsCache, KernelPaths};
use kprobed_lang::definition::{Definition, Dialect, Features, parse_as};
use kprobed_lang::samples::v6_12;

/// The fields of a line.
pub(super) fn spec(line: &str) -> v1::ProbeSpec {
    match parse_as(Dialect::Kernel, line, &v6_12()).result {
        Ok(Definition::Probe(definition)) => write(&definition),
        other => panic!("{line}: {other:?}"),
    }
}

/// A checker that knows the kernel's language, and nothing else of the kernel.
pub(in crate::rpc) fn checker_of(features: Features) -> Checker {
    let nowhere = || "/nonexistent".into();
    let paths = KernelPaths { procfs: nowhere(), sysfs: nowhere(), tracefs: nowhere(), debugfs: nowhere() };
    Checker::new(features, Arc::new(FactsCache::new(paths)))
}

/// The text that fields describe, or why there is none.
pub(super) fn given(spec: &v1::ProbeSpec) -> Result<Given, Unwritable> {
    Given::of(String::new(), Some(spec), &checker_of(v6_12())).map_err(|error| match error {
        GivenError::Fields(unwritable) => unwritable,
        GivenError::Form(message) => panic!("{message}"),
    })
}

/// A value that an argument can have.
#[expect(clippy::unnecessary_wraps, reason = "every field that holds one is optional")]
pub(super) fn fetch(source: Source) -> Option<v1::Fetch> {
    Some(v1::Fetch { source: Some(source) })
}
