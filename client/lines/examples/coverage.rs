//! Counts how many variables in scope are answered, at lines of a kernel that are drawn by chance.
//!
//! FILE is a vmlinux with debug information, a module, or an index that `kprobectl lines --make-index` has made. A
//! function is drawn, then one of its lines; the place is the first of that line, and every variable in scope there is
//! asked for. The same seed draws the same lines of the same file.
//!
//! With `--triples` it prints each question with its answer instead of the sums, to be compared with what another
//! program says of the same function, line and variable. The columns are separated by tabs: the function, the line
//! within it, the line of the source, the place, its address, the function that has the code if it is a copy, how many
//! other lines begin there, the variable, its type, `=` or `!`, and the arguments or the reason why there are none. The
//! variable is `-` if nothing is known of any.
//!
//! ```text
//! cargo run --release -p kprobed-lines --example coverage -- [--triples] FILE [LINES [SEED]]
//! ```
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

#[path = "support/chance.rs"]
mod chance;

use std::collections::BTreeMap;
use std::env;
use std::error::Error;

use kprobed_lines::{Argument, DebugInfo, Image, LinesError, Listing, Place, Visible};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1).peekable();
    let triples = arguments.next_if(|argument| argument == "--triples").is_some();
    let path = arguments.next().ok_or("usage: coverage [--triples] FILE [LINES [SEED]]")?;
    let lines = arguments.next().map_or(Ok(500), |text| text.parse())?;
    let seed = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let bytes = std::fs::read(path)?;
    if DebugInfo::is_index(&bytes) {
        return measure(&DebugInfo::from_index(&bytes)?, lines, seed, triples);
    }
    let image = Image::read(&bytes)?;
    measure(&DebugInfo::read(&image, None, &[])?, lines, seed, triples)
}

/// Asks for the variables at so many lines, and prints the sums or, with `triples`, each answer.
fn measure(info: &DebugInfo<'_>, lines: usize, seed: u64, triples: bool) -> Result<(), Box<dyn Error>> {
    let mut functions = info.functions()?;
    functions.sort_unstable();
    let mut chance = chance::Chance(seed);
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
                    if triples {
                        println!("{}\t{}", place_text(first), answer_text(variable));
                    }
                    *outcomes.entry(outcome(variable)).or_default() += 1;
                }
            }
            Err(error) => {
                if triples {
                    println!("{}\t-\t-\t!\t{}", place_text(first), error.message());
                }
                *outcomes.entry(without_names(error.message())).or_default() += 1;
            }
        }
    }
    if triples {
        return Ok(());
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

fn place_text(place: &Place) -> String {
    let relative = place.relative_line.map_or_else(|| "-".to_owned(), |line| line.to_string());
    let source = format!("{}:{}", place.source.file, place.source.line);
    let copy = place.inlined_into.as_deref().unwrap_or("-");
    let (address, shares) = (place.address, place.shares.len());
    format!("{}\t{relative}\t{source}\t{}\t{address:#x}\t{copy}\t{shares}", place.function, place.text)
}

fn answer_text(variable: &Visible) -> String {
    let answer = match answer(variable) {
        Ok(argument) => format!("=\t{}", argument.text()),
        Err(error) => format!("!\t{}", error.message()),
    };
    format!("{}\t{}\t{answer}", variable.name, variable.ty)
}

/// What a probe records of a variable, or why it records nothing.
fn answer(variable: &Visible) -> Result<&Argument, LinesError> {
    let argument = variable.argument.as_ref().map_err(Clone::clone)?;
    argument.objection().map_or(Ok(argument), Err)
}

/// What became of a question, without the names in it.
fn outcome(variable: &Visible) -> String {
    let error = match answer(variable) {
        Ok(argument) if argument.rule.is_some() => return format!("{ANSWERED}: computed by the daemon"),
        Ok(_) => return format!("{ANSWERED}: one argument fetches it"),
        Err(error) => error,
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
