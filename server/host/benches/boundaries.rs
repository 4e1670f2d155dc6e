//! Benchmark of instruction boundaries of a whole kernel: `insn::boundaries`, the decoder crate
//! alone, and `objdump -d` on the same bytes.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "../../benches/support/mod.rs"]
mod support;
#[allow(dead_code, clippy::allow_attributes, reason = "the tests of the rules need more of it")]
#[path = "../../fixtures/world.rs"]
mod world;

use std::hint::black_box;
use std::process::{Command, Stdio};

use criterion::{Criterion, Throughput};
use iced_x86::{Decoder, DecoderOptions, Instruction};
use kprobed_host::insn;

/// The code of every function, of a kernel that was requested or of the two that are stored.
fn code() -> (String, Vec<Vec<u8>>) {
    if let Some(path) = support::kernel() {
        return (path.display().to_string(), vec![support::kernel_text(&path)]);
    }
    let stored = ["6.1", "6.12"].map(world::functions);
    let functions = stored.into_iter().flat_map(|functions| functions.into_values().map(|one| one.code));
    ("the stored functions (KPROBED_BENCH_KERNEL names a whole kernel)".to_owned(), functions.collect())
}

/// All of the code: after a byte that does not decode the next function begins, or at least
/// something else.
fn ours(code: &[Vec<u8>]) -> usize {
    let mut count = 0;
    for mut rest in code.iter().map(Vec::as_slice) {
        while !rest.is_empty() {
            let mut end = 0;
            for extent in insn::boundaries(rest) {
                count += 1;
                end = extent.end;
            }
            rest = rest.get(end + 1..).unwrap_or_default();
        }
    }
    count
}

fn bare(code: &[Vec<u8>]) -> usize {
    let mut count = 0;
    let mut instruction = Instruction::default();
    for code in code {
        let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NO_INVALID_CHECK);
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            count += usize::from(!black_box(&instruction).is_invalid());
        }
    }
    count
}

fn main() {
    let (name, code) = code();
    let bytes: usize = code.iter().map(Vec::len).sum();
    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    let mut group = criterion.benchmark_group("boundaries");
    group.throughput(Throughput::Bytes(bytes as u64));
    group.bench_function("ours", |bencher| bencher.iter(|| ours(black_box(&code))));
    group.bench_function("bare", |bencher| bencher.iter(|| bare(black_box(&code))));
    group.finish();

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), code.concat()).unwrap();
    let mut objdump = Command::new("objdump");
    objdump.args(["-D", "-b", "binary", "-m", "i386:x86-64"]).arg(file.path()).stdout(Stdio::null());
    let [ours_time, bare_time] = [ours, bare].map(|run| {
        support::shortest(9, || {
            black_box(run(black_box(&code)));
        })
    });
    println!("{name}: {bytes} bytes, {} instructions", ours(&code));
    println!("ours     {:>9.2} ms", ours_time.as_secs_f64() * 1e3);
    let ratio = ours_time.as_secs_f64() / bare_time.as_secs_f64();
    println!("bare     {:>9.2} ms, ours takes {ratio:.2} times as long", bare_time.as_secs_f64() * 1e3);
    if objdump.status().is_ok_and(|status| status.success()) {
        let theirs = support::shortest(3, || {
            objdump.status().unwrap();
        });
        let ratio = theirs.as_secs_f64() / ours_time.as_secs_f64();
        println!("objdump  {:>9.2} ms, {ratio:.1} times as long as ours", theirs.as_secs_f64() * 1e3);
    } else {
        println!("objdump  is not here");
    }
}
