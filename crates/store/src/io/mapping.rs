//! A file as `Bytes`, read-only and without a copy, and what happens when it shrinks.

use std::fs::File;
use std::io;
use std::path::Path;

use bytes::Bytes;
use memmap2::{Mmap, MmapOptions};

/// Maps a whole regular file read-only and shared.
///
/// The pages are those of the page cache, so mapping a checkpoint twice, or reading it also with
/// `pread`, costs its memory once. The mapping lives until the last slice of it is dropped.
///
/// Units: the length is the one the file had when it was opened; an empty file gives empty bytes.
/// Errors: the operating system's, and `InvalidInput` for anything that is not a regular file.
pub fn map_read_only(path: &Path) -> io::Result<Bytes> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    if metadata.len() == 0 {
        return Ok(Bytes::new()); // mmap(2) refuses a length of zero
    }
    let len_bytes = usize::try_from(metadata.len()).map_err(|_| {
        io::Error::new(io::ErrorKind::FileTooLarge, "larger than the address space")
    })?;
    map_shared(&file, len_bytes).map(Bytes::from_owner)
}

fn map_shared(file: &File, len_bytes: usize) -> io::Result<Mmap> {
    // SAFETY: the mapping is read-only and `Mmap` unmaps it exactly once, when the last `Bytes`
    // that shares it is dropped; the kernel keeps the inode alive until then, so closing, renaming
    // or deleting the file is harmless. That nobody truncates or overwrites the file meanwhile is
    // guaranteed by the caller of `Checkpoint::open`, whose documentation demands it: a truncated
    // file would raise SIGBUS, an overwritten one would change bytes under our feet.
    unsafe { MmapOptions::new().len(len_bytes).map(file) }
}

/// What is said when a mapped file has lost its pages.
const LOST: &[u8] = b"tarfa: a file of the model was cut short, or its disk failed, while it was \
    in use (SIGBUS); the answer ends here and is not complete: restore the file and start again\n";

/// Ends the program with a message and exit code 1 where a mapped file was truncated or its disk
/// fails, instead of by a signal. Call it once, at the start.
pub fn end_on_lost_pages() {
    extern "C" fn end(_signal: libc::c_int) {
        // SAFETY: both calls are safe in a signal handler, and the message is static.
        unsafe {
            libc::write(2, LOST.as_ptr().cast(), LOST.len());
            libc::_exit(1)
        }
    }
    let handler = end as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler takes what the system gives and touches nothing of the program.
    unsafe {
        libc::signal(libc::SIGBUS, handler);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn maps_what_was_written_and_outlives_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, b"0123456789").unwrap();
        let middle = map_read_only(&path).unwrap().slice(3..6);
        fs::remove_file(&path).unwrap();
        assert_eq!(&middle[..], b"345");
    }

    #[test]
    fn an_empty_file_is_empty_bytes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(map_read_only(file.path()).unwrap().is_empty());
    }

    #[test]
    fn a_folder_and_an_absent_file_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        assert!(map_read_only(folder.path()).is_err());
        let absent = map_read_only(&folder.path().join("absent")).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }
}
