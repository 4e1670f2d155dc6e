//! Definitions of probes: each is checked, and refused with its reason or defined; then all probes
//! are listed, and those that were made are deleted again.
//!
//! ```sh
//! cargo run -p kprobed-client --example define
//! cargo run -p kprobed-client --example define -- 'p:mine vfs_read bytes=$arg3:u64'
//! ```
//!
//! `KPROBED_SERVER` says where the daemon is.
#![expect(clippy::print_stderr, reason = "a program for a terminal")]

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use kprobed_client::api::{CheckProbeResponse, CreateProbeRequest, DeleteProbeRequest, Probe, Verdict};
use kprobed_client::{Client, ConnectOptions, Target};

/// One that is good, and one in the middle of an instruction.
const DEFINITIONS: [&str; 2] = [
    "p:kprobes/open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):ustring",
    "p:kprobes/open_later do_sys_openat2+3",
];

#[tokio::main]
async fn main() -> ExitCode {
    let mut definitions: Vec<_> = std::env::args().skip(1).collect();
    if definitions.is_empty() {
        definitions = DEFINITIONS.map(str::to_owned).to_vec();
    }
    let Err(error) = run(&definitions).await else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    if let Some(error) = error.downcast_ref::<kprobed_client::Error>() {
        for hint in error.hints() {
            eprintln!("hint: {hint}");
        }
    }
    ExitCode::FAILURE
}

async fn run(definitions: &[String]) -> Result<(), Box<dyn Error>> {
    let target: Target = match std::env::var("KPROBED_SERVER") {
        Ok(text) => text.parse()?,
        Err(_not_set) => Target::default(),
    };
    let client = Client::connect(target, ConnectOptions::default()).await?;
    let mut output = io::stdout();
    let mut made = Vec::new();
    let outcome = define(&client, definitions, &mut made, &mut output).await;
    // What was made is removed, also after an error.
    for probe in made {
        let request = DeleteProbeRequest { name: probe.name.clone(), ..Default::default() };
        let hits = client.delete_probe(request).await?.map_or(0, |profile| profile.hits);
        writeln!(output, "deleted {}: it was hit {hits} times", probe.name)?;
    }
    outcome
}

async fn define(
    client: &Client,
    definitions: &[String],
    made: &mut Vec<Probe>,
    output: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    for definition in definitions {
        // Changes nothing. Whoever does not want to know before can create the probe at once: the
        // error has the same findings.
        let check = client.check_probe(definition).await?;
        if check.verdict() != Verdict::Accepted {
            explain(output, definition, &check)?;
            continue;
        }
        let request =
            CreateProbeRequest { definition: definition.clone(), enabled: true, ..Default::default() };
        let probe = client.create_probe(request).await?;
        writeln!(output, "defined {} at {}", probe.name, probe.location)?;
        made.push(probe);
    }
    for probe in client.list_probes("").await? {
        writeln!(output, "{}: {:?}", probe.name, probe.state())?;
    }
    Ok(())
}

/// Why a definition is refused: the kernel's errno, where in the text, what to write instead, and
/// which offsets near it work.
fn explain(output: &mut impl Write, definition: &str, check: &CheckProbeResponse) -> io::Result<()> {
    writeln!(output, "refused `{definition}`: {} ({})", check.rule, check.errno_name)?;
    for finding in &check.diagnostics {
        let span = finding.span_start as usize..finding.span_end as usize;
        let part = definition.get(span).unwrap_or_default();
        writeln!(output, "  `{part}`: {}", finding.message)?;
        if !finding.hint.is_empty() {
            writeln!(output, "  hint: {}", finding.hint)?;
        }
    }
    let nearest: Vec<_> = [check.nearest_before, check.nearest_after]
        .into_iter()
        .flatten()
        .map(|offset| format!("+{offset}"))
        .collect();
    if !nearest.is_empty() {
        writeln!(output, "  offsets that work: {}", nearest.join(", "))?;
    }
    Ok(())
}
