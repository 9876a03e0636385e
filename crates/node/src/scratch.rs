//! Room outside memory for what a sort cannot hold, and the runs that lie in it.
//!
//! The opener of the member decides where the room is: here are only the records, each a
//! length in four bytes and its content. Nothing of it outlives the command or cursor that uses it.

use std::fmt::Debug;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};

use crate::error::{CommandError, ErrorCode, Result};

/// Records longer than this are damage: a document and what a sort adds to it.
const MAX_RECORD: usize = 64 * 1024 * 1024;

/// What is written once, read once, and gone when it is dropped.
pub trait ScratchFile: Read + Write + Seek + Send {}

impl<T: Read + Write + Seek + Send> ScratchFile for T {}

/// Where to put what does not fit into memory.
pub trait Scratch: Debug + Send + Sync {
    /// A new file without a name.
    ///
    /// # Errors
    ///
    /// If there is no room for it.
    fn create(&self) -> io::Result<Box<dyn ScratchFile>>;
}

/// Records that were put aside, in their order.
pub(crate) struct Run(BufReader<Box<dyn ScratchFile>>);

impl Run {
    /// Puts records aside. The file of a run that could not be ended is left to `leave`: the system may take
    /// long to give its room back.
    pub(crate) fn keep(
        scratch: &dyn Scratch,
        mut records: impl Iterator<Item = Result<Vec<u8>>>,
        leave: impl FnOnce(Box<dyn ScratchFile>),
    ) -> Result<Self> {
        let mut writer = BufWriter::new(scratch.create().map_err(failed)?);
        let written = records.try_for_each(|record| write(&mut writer, &record?).map_err(failed));
        if let Err(error) = written {
            leave(writer.into_parts().0);
            return Err(error);
        }
        let mut file = writer.into_inner().map_err(|error| failed(error.into_error()))?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        Ok(Self(BufReader::new(file)))
    }

    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut length = [0; 4];
        match self.0.read_exact(&mut length) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_RECORD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut record = vec![0; length];
        self.0.read_exact(&mut record)?;
        Ok(Some(record))
    }
}

impl Iterator for Run {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().map_err(failed).transpose()
    }
}

fn write(writer: &mut impl Write, record: &[u8]) -> io::Result<()> {
    let length = u32::try_from(record.len()).map_err(io::Error::other)?;
    writer.write_all(&length.to_be_bytes())?;
    writer.write_all(record)
}

fn failed(error: io::Error) -> CommandError {
    let code = match error.kind() {
        io::ErrorKind::StorageFull => ErrorCode::OUT_OF_DISK_SPACE,
        _ => ErrorCode::INTERNAL_ERROR,
    };
    let message = format!(
        "what a sort cannot hold in memory cannot be put aside: {error}; free some disk, or add an \
         index for the sort"
    );
    CommandError::new(code, message)
}

/// What was put aside is damaged.
pub(crate) fn damaged() -> CommandError {
    failed(io::ErrorKind::InvalidData.into())
}
