//! `kprobectl describe`: parameters, return type and structures of a function.

use clap::Args;
use kprobed_client::api::DescribeFunctionRequest;

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
Types come from the BTF of the running kernel and its modules. ARGUMENT and MEMBER are what a \
definition can contain; FETCHED AS is the type that is used if the definition has none. \
`:string` reads a text from kernel memory, `:ustring` one from the memory of a program.

Examples:
  kprobectl describe vfs_read
  kprobectl describe vfs_read 'file->f_inode'
  kprobectl describe vfs_open 'path->dentry->d_name'
  kprobectl describe ext4:ext4_file_open -o json";

/// Arguments of `describe`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The function, as FUNCTION or MODULE:FUNCTION
    function: String,
    /// List the members of the structure that this leads to: a parameter, `$retval`, or a path such as `file->f_inode`
    path: Option<String>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
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
