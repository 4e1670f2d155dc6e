//! Benchmark of a decision, and of the limit of a principal: a small role file, and one with a hundred
//! roles of ten rules each.
//!
//! The goal is 10 us for each decision: a list of 1000 definitions must not notice its rights.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use kprobed_lang::model::{Labels, ProbeName};
use kprobed_rights::{Known, Limit, Method, Object, Principal, Question, Read, Reads, Roles};

/// Roles that all belong to the same user, each with rules that do not allow what is asked; the last
/// one does.
fn file(roles: usize, rules: usize) -> String {
    let rule = |role: usize, rule: usize| {
        format!(
            "[[role.allow]]\nmethods = [\"change\"]\nfunctions = [\"nf_{role}_*\", \"*_x{rule}\"]\nreads = [\"registers\"]\n"
        )
    };
    let role = |role: usize| {
        let rules: String = (0..rules).map(|number| rule(role, number)).collect();
        format!(
            "[[role]]\nname = \"r{role}\"\nprincipals = [\"user:alice\"]\n{rules}[[role.deny]]\nfunctions = [\"*_key*\"]\n[role.limits]\nprobes = {role}\n"
        )
    };
    let roles: String = (0..roles).map(role).collect();
    let last = "[[role.allow]]\nmethods = [\"change\"]\nreads = [\"all\"]\n";
    format!("{roles}[[role]]\nname = \"last\"\nprincipals = [\"user:alice\"]\n{last}")
}

fn decision(c: &mut Criterion) {
    let principal = Principal::of_names(&["user:alice".to_owned(), "uid:1000".to_owned()]);
    let (Ok(principal), Ok(name), Some(method)) =
        (principal, "kprobes/open".parse::<ProbeName>(), Method::named("CreateProbe"))
    else {
        return;
    };
    let (labels, functions) = (Labels::default(), ["do_sys_openat2".to_owned()]);
    let object = Object {
        name: &name,
        labels: &labels,
        functions: &functions,
        module: Some("vmlinux"),
        reads: Reads::NONE.with(Read::Registers),
        known: Known::All,
    };
    let mut group = c.benchmark_group("decision");
    for (roles, rules) in [(3, 4), (100, 10)] {
        let Ok(table) = Roles::parse(&file(roles, rules)) else { return };
        let question = Question { principal: &principal, method, object: Some(&object) };
        assert!(table.decide(question).is_allowed());
        group.bench_function(format!("{roles} roles of {rules} rules"), |b| {
            b.iter(|| table.decide(black_box(question)));
        });
        assert!(table.bound(&principal, Limit::Probes).is_some());
        group.bench_function(format!("a limit in {roles} roles"), |b| {
            b.iter(|| table.bound(black_box(&principal), Limit::Probes));
        });
    }
    group.finish();
}

criterion_group!(benches, decision);
criterion_main!(benches);
