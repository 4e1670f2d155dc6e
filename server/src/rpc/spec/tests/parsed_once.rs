//! Tests that a text is parsed only once: when it arrives, or when the database is read, and not
//! again by the checker, by the meaning guard, or for an answer.

use std::time::SystemTime;

use super::*;
use crate::control::{Registry, test_made, test_recalled};
use crate::rpc::changes;
use crate::rpc::probes::probe_message;
use crate::store::{ProbeSpec, Record};
use kprobed_lang::model::{KernelChange, Metadata, ProbeUid};
use kprobed_verdict::checker::DefinitionText;

/// Probes of a long list.
const MANY: u64 = 1000;

fn stored_kernel() -> (world::World, Checker) {
    let sites = std::fs::read_to_string(world::fixture("patch-sites-6.12.tsv")).unwrap();
    let world = world::world("6.12", &sites);
    let features = Features::from_readme("char, string, ustring kernel return probes support");
    let checker = Checker::new(features, Arc::new(FactsCache::new(world.paths.clone())));
    (world, checker)
}

/// How often texts are parsed from a request to its answer.
fn parsed_by(request: v1::CreateProbeRequest) -> u64 {
    let (_world, checker) = stored_kernel();
    let given = Given::of(request.definition.clone(), request.spec.as_ref(), &checker).unwrap();
    let probe = test_made(&checker, changes::creation(request, &given).unwrap());
    let answer = probe_message(&checker, &probe);
    assert_eq!(answer.spec.unwrap().arguments.len(), 2);
    checker.texts_parsed()
}

#[test]
fn a_request_is_parsed_once() {
    let line = "p:g/e vfs_read x=$arg1:u64 y=%si";
    let by_text = v1::CreateProbeRequest { definition: line.to_owned(), ..Default::default() };
    let by_fields = v1::CreateProbeRequest { spec: Some(spec(line)), ..Default::default() };
    assert_eq!((parsed_by(by_text), parsed_by(by_fields)), (1, 1));
}

#[test]
fn rows_are_parsed_once_and_lists_parse_nothing() {
    let (_world, checker) = stored_kernel();
    let records = (1..=MANY).map(|number| {
        let text = format!("p:g/e{number} vfs_read x=$arg1:u64 y=%si");
        let definition = Arc::new(DefinitionText::new(text.clone()));
        // Their meaning was not stored: they are armed all the same.
        let on_kernel_change = KernelChange::ArmAnyway;
        let metadata = Metadata { on_kernel_change, ..Metadata::default() };
        let spec = ProbeSpec { definition, enabled: true, metadata, ..ProbeSpec::default() };
        let name = format!("g/e{number}").parse().unwrap();
        let uid = ProbeUid(number.try_into().unwrap());
        Record { uid, ..Record::new(name, spec, text, SystemTime::UNIX_EPOCH) }
    });
    let registry: Registry = test_recalled(&checker, records.collect()).into_iter().collect();
    assert_eq!(checker.texts_parsed(), MANY, "by a start");
    let page = registry.page(None, 1000, |_| true);
    let listed: Vec<_> = page.iter().map(|probe| probe_message(&checker, probe)).collect();
    assert_eq!((listed.len() as u64, checker.texts_parsed()), (MANY, MANY), "by a list");
    assert!(listed.iter().all(|probe| probe.spec.as_ref().is_some_and(|spec| spec.arguments.len() == 2)));
}
