//! How fast a drive gives bytes to somebody who does nothing with them: what readers are held to.

use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use super::arena::{ALIGN, Arena, ArenaSlot};
use super::file::DiskFile;
use super::ring::Part;

/// Files, a ring, and a buffer for each read in flight; independent of `Ring`.
pub struct RawReader {
    ring: IoUring,
    files: Vec<DiskFile>,
    buffers: Vec<ArenaSlot>,
    piece_bytes: usize,
}

impl RawReader {
    /// At most `depth` reads of at most `piece_bytes` in flight, each into a registered buffer.
    ///
    /// # Errors
    /// The operating system's, where it has no io_uring for us.
    pub fn new(files: Vec<DiskFile>, depth: usize, piece_bytes: usize) -> io::Result<RawReader> {
        let piece_bytes = piece_bytes.next_multiple_of(ALIGN);
        let arena = Arena::new(piece_bytes, depth)?;
        let mut buffers: Vec<ArenaSlot> = std::iter::from_fn(|| arena.take()).collect();
        let ring = IoUring::new((depth as u32).next_power_of_two())?;
        let regions: Vec<libc::iovec> = buffers
            .iter_mut()
            .map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() })
            .collect();
        // SAFETY: the regions are the buffers, which `RawReader` keeps; the kernel pins their pages
        // until the ring is gone, so not even a read that nobody waits for writes elsewhere.
        unsafe { ring.submitter().register_buffers(&regions) }?;
        Ok(RawReader { ring, files, buffers, piece_bytes })
    }

    /// Reads parts of files and forgets them.
    ///
    /// Units: gives the bytes read, alignment included.
    ///
    /// # Errors
    /// The operating system's.
    pub fn read(&mut self, parts: &[Part]) -> io::Result<u64> {
        let piece = self.piece_bytes;
        let pieces = |p: &Part| {
            let (file, offset, len) = (p.file, p.offset_bytes, p.len);
            (0..len)
                .step_by(piece)
                .map(move |from| (file, offset + from as u64, piece.min(len - from)))
        };
        let mut pieces = parts.iter().flat_map(pieces);
        let mut free: Vec<usize> = (0..self.buffers.len()).collect();
        let (mut flying, mut bytes, mut failed) = (0, 0u64, None);
        loop {
            while let Some(buffer) = free.pop() {
                let Some((file, offset, len)) = pieces.next().filter(|_| failed.is_none()) else {
                    free.push(buffer);
                    break;
                };
                let fd = types::Fd(self.files[file].file.as_raw_fd());
                let into = self.buffers[buffer].as_mut_ptr();
                let entry = opcode::ReadFixed::new(fd, into, len as u32, buffer as u16)
                    .offset(offset)
                    .build()
                    .user_data(buffer as u64);
                // SAFETY: a buffer that no other read has; it is free again once this one is over.
                let pushed = unsafe { self.ring.submission().push(&entry) };
                assert!(pushed.is_ok(), "the ring has room for each buffer");
                flying += 1;
            }
            if flying == 0 {
                return failed.map_or(Ok(bytes), Err);
            }
            self.ring.submit_and_wait(1)?;
            for done in self.ring.completion() {
                flying -= 1;
                free.push(done.user_data() as usize);
                match usize::try_from(done.result()) {
                    Ok(count) => bytes += count as u64,
                    Err(_) => failed = Some(io::Error::from_raw_os_error(-done.result())),
                }
            }
        }
    }
}
