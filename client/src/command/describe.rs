//! `kprobectl describe`: the types of a function.

use clap::Args;
use kprobed_client::api::DescribeFunctionRequest;

use super::connection::connect;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
Types come from the BTF of the running kernel and its modules. What stands under ARGUMENT and \
MEMBER can be written in a definition as it is; FETCHED AS is the type that it has there if \
none is written. Strings in a program's memory are read with `:ustring`, in the kernel's with \
`:string`.

Examples:
  kprobectl describe vfs_read
  kprobectl describe vfs_read 'file->f_inode'
  kprobectl describe vfs_open 'path->dentry->d_name'
  kprobectl describe ext4:ext4_file_open -o json";

/// Arguments of `describe`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The function, as FUNCTION or MODULE:FUNCTION
    function: String,
    /// List the members of what this leads to: a parameter, `$retval`, or a path from there
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
