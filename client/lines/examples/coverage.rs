//! Counts how many variables in scope are answered, at lines of a kernel that are drawn by chance.
//!
//! FILE is a vmlinux with debug information, a module, or an index that `kprobectl lines --make-index` has made. A
//! function is drawn, then one of its lines; the place is the first of that line, and every variable in scope there is
//! asked for. The same seed draws the same lines of the same file.
//!
//! ```text
//! cargo run --release -p kprobed-lines --example coverage -- FILE [LINES [SEED]]
//! ```
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::collections::BTreeMap;
use std::env;
use std::error::Error;

use kprobed_lines::{DebugInfo, Image, Listing, Visible};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let path = arguments.next().ok_or("usage: coverage FILE [LINES [SEED]]")?;
    let lines = arguments.next().map_or(Ok(500), |text| text.parse())?;
    let seed = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let bytes = std::fs::read(path)?;
    if DebugInfo::is_index(&bytes) {
        return measure(&DebugInfo::from_index(&bytes)?, lines, seed);
    }
    let image = Image::read(&bytes)?;
    measure(&DebugInfo::read(&image, None, &[])?, lines, seed)
}

/// Asks for the variables at so many lines, and prints the sums.
fn measure(info: &DebugInfo<'_>, lines: usize, seed: u64) -> Result<(), Box<dyn Error>> {
    let mut functions = info.functions()?;
    functions.sort_unstable();
    let mut chance = Chance(seed);
    let (mut asked, mut without_code) = (0, 0);
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    while asked < lines {
        let function = functions.get(chance.below(functions.len())).ok_or("the file has no functions")?;
        // Most are inlined in no code, or declared only.
        let Ok(places) = info.listing(&Listing::parse(function)?) else {
            without_code += 1;
            if without_code > 1000 * (lines + 1) {
                return Err("too few functions of the file have code".into());
            }
            continue;
        };
        let Some(drawn) = places.get(chance.below(places.len())) else { continue };
        let first = places.iter().find(|place| place.source == drawn.source).unwrap_or(drawn);
        asked += 1;
        match info.variables(first) {
            Ok(variables) => {
                for variable in &variables {
                    *outcomes.entry(outcome(variable)).or_default() += 1;
                }
            }
            Err(error) => *outcomes.entry(without_names(error.message())).or_default() += 1,
        }
    }
    let all: usize = outcomes.values().sum();
    let sum = |of: &str| -> usize {
        outcomes.iter().filter(|(outcome, _)| outcome.starts_with(of)).map(|(_, count)| count).sum()
    };
    let (there, answered) = (all - sum(GONE), sum(ANSWERED));
    println!("{asked} lines, {all} variables in scope, {there} of them kept by the compiler there");
    println!("answered: {} of all, {} of those kept", share(answered, all), share(answered, there));
    let mut outcomes: Vec<_> = outcomes.into_iter().collect();
    outcomes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (outcome, count) in outcomes {
        println!("{count:7} {} {outcome}", share(count, all));
    }
    Ok(())
}

/// What begins the outcome of variables that a probe records.
const ANSWERED: &str = "answered";

/// What begins the reasons of variables that have no value at a place, whoever asks.
const GONE: &str = "optimised out";

/// What became of a question, without the names in it.
fn outcome(variable: &Visible) -> String {
    let error = match &variable.argument {
        Ok(argument) => match argument.objection() {
            None if argument.rule.is_some() => return format!("{ANSWERED}: computed by the daemon"),
            None => return format!("{ANSWERED}: one argument fetches it"),
            Some(error) => error,
        },
        Err(error) => error.clone(),
    };
    let text = without_names(error.message());
    let is_gone = ["removed", "nowhere at this instruction"].iter().any(|part| text.contains(part));
    if is_gone { format!("{GONE}: {text}") } else { text }
}

/// A message without the names in it, which differ each time: they are between backticks.
fn without_names(message: &str) -> String {
    let parts = message.split('`').enumerate();
    let text: String = parts.map(|(number, part)| if number % 2 == 0 { part } else { ".." }).collect();
    text.strip_prefix("..: ").unwrap_or(&text).to_owned()
}

fn share(part: usize, all: usize) -> String {
    format!("{:4.1} %", 100.0 * part as f64 / all.max(1) as f64)
}

/// Numbers by chance: those of splitmix64.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((number ^ number >> 31) % (end.max(1) as u64)).unwrap_or(0)
    }
}
