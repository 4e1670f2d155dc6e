//! Answers to generated definitions, to compare those of two commits.
//!
//! Prints what the checker says of ten thousand lines on the stored kernels: the same lines in
//! every run. Save what one commit prints, and compare it with what the next one prints: a line
//! whose answer differs has a reason, or is a mistake.
//!
//! ```text
//! cargo run -p kprobed-verdict --example answers > before.txt
//! ```
#![expect(clippy::unwrap_used, reason = "without the fixtures there is nothing to do")]

mod lines;
mod names;
mod show;
mod types;
#[path = "../../../fixtures/world.rs"]
#[expect(dead_code, reason = "tests use the rest of it")]
mod world;

use std::fs;
use std::io::{Write as _, stdout};
use std::sync::Arc;

use kprobed_host::kernel::FactsCache;
use kprobed_lang::definition::Features;
use kprobed_lang::samples::{v6_1, v6_12, v7_3};
use kprobed_verdict::checker::Checker;

use self::lines::{LINES, Lines};
use self::names::SomeTaken;
use self::world::{fixture, functions, world};

fn main() {
    let mut functions_of_both: Vec<String> =
        functions("6.1").into_keys().filter(|name| functions("6.12").contains_key(name)).collect();
    functions_of_both.sort_unstable();
    let lines: Vec<String> = Lines::new(&functions_of_both).take(LINES).collect();
    let mut out = stdout().lock();
    let kernels: [(&str, &str, Features, bool); 4] = [
        ("6.1", "6.1", v6_1(), true),
        ("6.12", "6.12", v6_12(), true),
        ("6.1 as first released, without types", "6.1", Features::from_readme(""), false),
        ("6.12 with the language of 7.3", "6.12", v7_3(), true),
    ];
    for (name, stored, features, has_types) in kernels {
        let sites = fs::read_to_string(fixture(&format!("patch-sites-{stored}.tsv"))).unwrap();
        let world = world(stored, &sites);
        if has_types {
            let directory = world.paths.sysfs.join("kernel/btf");
            fs::create_dir_all(&directory).unwrap();
            for (module, types) in types::of_kernel(&functions_of_both) {
                fs::write(directory.join(module), types).unwrap();
            }
        }
        let checker =
            Checker::new(features.with_types(has_types), Arc::new(FactsCache::new(world.paths.clone())))
                .with_names(Arc::new(SomeTaken));
        let mut facts = checker.recent_facts();
        for (index, line) in lines.iter().enumerate() {
            let answer = show::answer(&checker, line, &mut facts);
            writeln!(out, "[{name}] {index} {line:?}\n{answer}").unwrap();
        }
    }
}
