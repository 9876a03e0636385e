//! Files of a package, and archives of them that are the same wherever they are made.

use std::collections::BTreeMap;
use std::io::Write;

use flate2::{Compression, GzBuilder};

use crate::Effort;

/// What is at a path.
#[derive(Clone, Debug)]
enum Item {
    Directory { mode: u32, owner: u64 },
    File { mode: u32, bytes: Vec<u8> },
}

/// Files by their paths, without a slash in front.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files(BTreeMap<String, Item>);

impl Files {
    /// Adds a file that all users may read, and the directories above it.
    pub(crate) fn text(&mut self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.add(path, 0o644, bytes.into());
    }

    /// Adds a file that all users may run.
    pub(crate) fn program(&mut self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.add(path, 0o755, bytes.into());
    }

    /// Adds a directory of this user.
    pub(crate) fn directory(&mut self, path: &str, mode: u32, owner: u64) {
        self.parents(path);
        self.0.insert(format!("{path}/"), Item::Directory { mode, owner });
    }

    fn add(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        self.parents(path);
        self.0.insert(path.to_owned(), Item::File { mode, bytes });
    }

    fn parents(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            let directory = Item::Directory { mode: 0o755, owner: 0 };
            self.0.entry(path[..=at].to_owned()).or_insert(directory);
        }
    }

    /// How many bytes its files have.
    pub(crate) fn size(&self) -> usize {
        let sizes = self.0.values().map(|item| match item {
            Item::Directory { .. } => 0,
            Item::File { bytes, .. } => bytes.len(),
        });
        sizes.sum()
    }

    /// A tar archive, each path after `prefix`.
    pub(crate) fn tar(&self, prefix: &str) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, item) in &self.0 {
            let mut header = tar::Header::new_gnu();
            let (mode, owner, bytes): (_, _, &[u8]) = match item {
                Item::Directory { mode, owner } => {
                    header.set_entry_type(tar::EntryType::Directory);
                    (*mode, *owner, &[])
                }
                Item::File { mode, bytes } => (*mode, 0, bytes),
            };
            header.set_mode(mode);
            header.set_uid(owner);
            header.set_gid(owner);
            header.set_mtime(0);
            header.set_size(bytes.len() as u64);
            let added = builder.append_data(&mut header, format!("{prefix}{path}"), bytes);
            added.expect("an archive in memory takes every path");
        }
        builder.into_inner().expect("memory does not fail")
    }
}

/// Compresses, without the time or a name.
pub(crate) fn gzip(bytes: &[u8], effort: Effort) -> Vec<u8> {
    let level = match effort {
        Effort::Best => Compression::best(),
        Effort::Least => Compression::fast(),
    };
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), level);
    encoder.write_all(bytes).expect("memory does not fail");
    encoder.finish().expect("memory does not fail")
}
