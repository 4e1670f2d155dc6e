//! `kprobectl describe`: parameters, return type, structures and code of a function.

use clap::Args;
use kprobed_client::api::{DescribeFunctionRequest, ProbeKind};

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
Types come from the BTF of the running kernel and its modules. ARGUMENT and MEMBER are what a \
definition can contain; FETCHED AS is the type that is used if the definition has none. \
`:string` reads a text from kernel memory, `:ustring` one from the memory of a program.

--code shows the instructions as they are in memory now. PROBE says how the kernel would arm a probe there: through \
ftrace, with a breakpoint, or with a jump that replaces the breakpoint. If a rule forbids a probe there, it names the \
rule; `-o wide` adds the reason. If several functions have the name, the command fails with a hint how to name each of \
them.

Examples:
  kprobectl describe vfs_read
  kprobectl describe vfs_read 'file->f_inode'
  kprobectl describe vfs_open 'path->dentry->d_name'
  kprobectl describe ext4:ext4_file_open -o json
  kprobectl describe vfs_read --code
  kprobectl describe kernel_clone+11 --code --return
  kprobectl describe btrfs:btrfs_sync_file --code -o json | jq -r 'select(.probeable).offset'";

/// Arguments of `describe`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The function, as FUNCTION or MODULE:FUNCTION; for --code also with `+OFFSET`, or an address in it
    function: String,
    /// List the members of the structure that this leads to: a parameter, `$retval`, or a path such as `file->f_inode`
    #[arg(conflicts_with = "code")]
    path: Option<String>,
    /// Show the instructions, and where a probe can be placed
    #[arg(long)]
    code: bool,
    /// Show where a return probe can be placed [default: an entry probe]
    #[arg(long, requires = "code")]
    r#return: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    if arguments.code {
        return code(global, arguments, output).await;
    }
    let (module, function) = arguments.function.split_once(':').unwrap_or(("", &arguments.function));
    let request = DescribeFunctionRequest {
        function: function.to_owned(),
        module: module.to_owned(),
        path: arguments.path.unwrap_or_default(),
    };
    let client = connect(global).await?;
    let answer = client.describe_function(request).await?;
    output.description(&answer)?;
    Ok(Exit::Success)
}

async fn code(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let kind = if arguments.r#return { ProbeKind::Return } else { ProbeKind::Entry };
    let answer = client.disassemble_function(&arguments.function, kind).await?;
    if answer.function.is_none() {
        let name = arguments.function;
        return Err(Failure::SeveralFunctions { name, candidates: answer.candidates });
    }
    output.disassembly(&answer)?;
    Ok(Exit::Success)
}
