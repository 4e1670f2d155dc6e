//! Texts that are too long to hold: files and standard input, in pieces.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;

use super::Failure;

/// Bytes of a piece: what a pipe holds.
const PIECE_BYTES: usize = 64 << 10;

/// Pieces that may wait to be sent.
const PIECES_WAITING: usize = 4;

/// How reading came to its end.
#[derive(Debug)]
pub(super) struct Outcome {
    path: PathBuf,
    end: oneshot::Receiver<io::Result<()>>,
}

impl Outcome {
    /// Waits for the end of the text.
    ///
    /// # Errors
    /// When it could not be read to its end.
    pub(super) async fn wait(self) -> Result<(), Failure> {
        let Self { path, end } = self;
        end.await.map_err(io::Error::other).flatten().map_err(|source| match path.as_path() {
            standard if standard == Path::new("-") => Failure::Input(source),
            _ => Failure::File { path, source },
        })
    }
}

/// The text of a file, or of standard input if the file is `-`, in pieces as they come. It is read on a thread of its own, no further
/// than is asked for, so that Ctrl-C is heard meanwhile; the thread ends with the process.
///
/// # Errors
/// When the file cannot be opened.
pub(super) fn of_file(path: &Path) -> Result<(impl Stream<Item = Vec<u8>> + use<>, Outcome), Failure> {
    let mut source: Box<dyn Read + Send> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(|source| Failure::File { path: path.to_owned(), source })?)
    };
    let (pieces, receiver) = mpsc::channel(PIECES_WAITING);
    let (ended, end) = oneshot::channel();
    std::thread::spawn(move || {
        // Nobody listens any more when the command was interrupted.
        ended.send(read(&mut source, &pieces)).ok();
    });
    Ok((ReceiverStream::new(receiver), Outcome { path: path.to_owned(), end }))
}

fn read(source: &mut dyn Read, pieces: &mpsc::Sender<Vec<u8>>) -> io::Result<()> {
    loop {
        let mut piece = vec![0; PIECE_BYTES];
        let length = match source.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        };
        piece.truncate(length);
        if length == 0 || pieces.blocking_send(piece).is_err() {
            return Ok(());
        }
    }
}
