//! Input of commands: definitions from arguments, files and standard input.
//!
//! Owns reading, whole or in chunks, on threads of its own, so that Ctrl-C works meanwhile. It never
//! checks a definition: the daemon does.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{OnceCell, mpsc, oneshot};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;

use super::{Exit, Failure};

/// Joins the words of a definition, or reads one from standard input when the only word is `-`.
pub(super) async fn definition(words: &[String]) -> Result<String, Failure> {
    if words != ["-"] {
        if words.len() > 1 && words.iter().all(|word| is_definition(word)) {
            let hint = "`-f FILE` reads several, one on each line";
            return Err(Failure::usage("there is more than one definition", hint));
        }
        return Ok(words.join(" "));
    }
    let text = standard_input().await?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    match (lines.next(), lines.next()) {
        (Some(line), None) => Ok(line.to_owned()),
        (None, _) => Err(Failure::new(Exit::Usage, "standard input has no definition", [])),
        (Some(_), Some(_)) => {
            Err(Failure::usage("standard input has more than one definition", "`-f -` reads several"))
        }
    }
}

/// Whether a word of the command line is a whole line, as in `'p:read vfs_read'`.
fn is_definition(word: &str) -> bool {
    let begins = word.strip_prefix(['p', 'r']).is_some_and(|rest| rest.starts_with([':', ' ']));
    begins && word.trim().contains(' ')
}

/// All of a file, or of standard input if the file is `-`.
pub(super) async fn content(path: &Path) -> Result<String, Failure> {
    if path == Path::new("-") {
        return standard_input().await;
    }
    let file = path.to_owned();
    on_a_thread(move || std::fs::read_to_string(file)).await.map_err(|why| Failure::unreadable(path, &why))
}

/// All of standard input. It can be read once only, and every reader gets the same text.
pub(super) async fn standard_input() -> Result<String, Failure> {
    static INPUT: OnceCell<String> = OnceCell::const_new();
    let text = INPUT.get_or_try_init(|| on_a_thread(|| io::read_to_string(io::stdin()))).await;
    text.cloned().map_err(|why| Failure::unreadable(Path::new("-"), &why))
}

/// Reads to the end on a thread of its own, so that Ctrl-C works meanwhile. The thread ends with
/// the process.
async fn on_a_thread(read: impl FnOnce() -> io::Result<String> + Send + 'static) -> io::Result<String> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        // After an interrupt no receiver is left.
        sender.send(read()).ok();
    });
    receiver.await.map_err(io::Error::other)?
}

/// Bytes of a chunk: what a pipe holds.
const CHUNK_BYTES: usize = 64 << 10;

/// Pieces that may wait to be sent.
const CHUNKS_WAITING: usize = 4;

/// How reading came to its end.
#[derive(Debug)]
pub(super) struct InputEnd {
    path: PathBuf,
    end: oneshot::Receiver<io::Result<()>>,
}

impl InputEnd {
    /// Waits for the end of the text.
    ///
    /// # Errors
    /// When it could not be read to its end.
    pub(super) async fn wait(self) -> Result<(), Failure> {
        let Self { path, end } = self;
        end.await.map_err(io::Error::other).flatten().map_err(|why| Failure::unreadable(&path, &why))
    }
}

/// A file of definitions; `-` is standard input.
#[derive(Clone, Debug)]
pub(crate) struct DefinitionFile {
    path: PathBuf,
    /// Its text, for several hosts.
    text: Option<Arc<[u8]>>,
}

impl From<OsString> for DefinitionFile {
    fn from(path: OsString) -> Self {
        Self { path: path.into(), text: None }
    }
}

impl DefinitionFile {
    /// Where it is; `-` is standard input.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the whole file, so that several hosts get the same text.
    pub(crate) async fn read(&mut self) -> Result<(), Failure> {
        self.text = Some(content(&self.path).await?.into_bytes().into());
        Ok(())
    }

    /// The text in pieces as they come. The file is read on a thread of its own, no further than is requested, so
    /// that Ctrl-C is heard meanwhile; the thread ends with the process.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub(super) fn chunks(&self) -> Result<(impl Stream<Item = Vec<u8>> + use<>, InputEnd), Failure> {
        let mut source: Box<dyn Read + Send> = match &self.text {
            Some(text) => Box::new(io::Cursor::new(Arc::clone(text))),
            None if self.path == Path::new("-") => Box::new(io::stdin()),
            None => Box::new(File::open(&self.path).map_err(|why| Failure::unreadable(&self.path, &why))?),
        };
        let (sender, receiver) = mpsc::channel(CHUNKS_WAITING);
        let (ended, end) = oneshot::channel();
        std::thread::spawn(move || {
            // After an interrupt no receiver is left.
            ended.send(read(&mut source, &sender)).ok();
        });
        Ok((ReceiverStream::new(receiver), InputEnd { path: self.path.clone(), end }))
    }
}

fn read(source: &mut dyn Read, sender: &mpsc::Sender<Vec<u8>>) -> io::Result<()> {
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        let length = match source.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        };
        chunk.truncate(length);
        if length == 0 || sender.blocking_send(chunk).is_err() {
            return Ok(());
        }
    }
}
