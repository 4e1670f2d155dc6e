//! Benchmark of the memory that the facts of a kernel take.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "../../benches/support/mod.rs"]
mod support;
#[allow(dead_code, clippy::allow_attributes, reason = "the tests of the rules need more of it")]
#[path = "../../fixtures/world.rs"]
mod world;

use std::process::Command;
use std::time::Instant;

use kprobed_host::kernel::{KernelFacts, KernelPaths};

/// Variable with the directory of the stored kernel, for this program started again: making the
/// kernel takes memory too.
const DIRECTORY: &str = "KPROBED_BENCH_DIRECTORY";

fn main() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        let inside = |name: &str| std::path::Path::new(&directory).join(name);
        measure(&KernelPaths {
            procfs: inside("proc"),
            sysfs: inside("sys"),
            debugfs: inside("debug"),
            tracefs: inside("tracing"),
        });
        return;
    }
    for kernel in ["6.1", "6.12"] {
        let world = world::world(kernel, "");
        let root = world.paths.procfs.parent().unwrap();
        println!("{kernel}");
        let this = std::env::current_exe().unwrap();
        assert!(Command::new(this).env(DIRECTORY, root).status().unwrap().success());
    }
}

fn measure(paths: &KernelPaths) {
    let before = support::status_kib("VmRSS");
    let start = Instant::now();
    let facts = KernelFacts::read(paths).unwrap();
    let read = start.elapsed();
    let after = support::status_kib("VmRSS");
    let start = Instant::now();
    let like = facts.symbols.similar_code_names("vfs_raed");
    let indexed = start.elapsed();
    assert_eq!(like.first(), Some(&"vfs_read"));
    let with_index = support::status_kib("VmRSS");
    println!("  {} symbols", facts.symbols.len());
    println!("  read in {read:?}: {} KiB resident more", after.saturating_sub(before));
    println!("  index of names in {indexed:?}: {} KiB resident more", with_index.saturating_sub(after));
    println!("  at most {} KiB in all while reading", support::status_kib("VmHWM"));
    assert!(with_index - before < 32 << 10, "the facts shall stay below 32 MiB");
}
