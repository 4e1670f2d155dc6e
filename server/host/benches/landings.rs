//! Benchmark of the search for places in the middle of functions that other code leads to: the
//! processor time of the first look at a whole kernel, and the memory of what is found.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "../../benches/support/mod.rs"]
mod support;

use std::time::Duration;

use kprobed_host::kernel::{KernelFacts, KernelImage, Landing};

/// The landings, and how long the first question for one took.
fn search(facts: &KernelFacts) -> (Vec<Landing>, Duration) {
    let functions = facts.symbols.functions(None);
    let functions = functions.iter().filter(|function| facts.core_text.contains(&function.start));
    // The threads of this program have its name.
    let begun = support::cpu_time_of("landings");
    facts.landing_in(&(facts.core_text.start..facts.core_text.start + 1));
    let took = support::cpu_time_of("landings").saturating_sub(begun);
    let mut found = Vec::new();
    for function in functions {
        let mut rest = function.start + 1..function.end;
        while let Some(landing) = (!rest.is_empty()).then(|| facts.landing_in(&rest)).flatten() {
            rest.start = landing.to + 1;
            found.push(landing);
        }
    }
    (found, took)
}

fn main() {
    let Some(path) = support::kernel() else {
        println!("KPROBED_BENCH_KERNEL names a kernel");
        return;
    };
    let facts = KernelFacts::of_image(KernelImage::open(&path).unwrap()).unwrap();
    let text = facts.core_text.end - facts.core_text.start;
    let before = support::status_kib("VmRSS");
    let (found, mut shortest) = search(&facts);
    let memory = support::status_kib("VmRSS").saturating_sub(before);
    for _ in 1..support::much(5, 1) {
        let facts = KernelFacts::of_image(KernelImage::open(&path).unwrap()).unwrap();
        shortest = shortest.min(search(&facts).1);
    }
    println!("{}: {} KiB of text, {} landings", path.display(), text >> 10, found.len());
    println!("first look {:>9.2} ms, {memory} KiB resident more", shortest.as_secs_f64() * 1e3);
}
