//! An archive to unpack anywhere.

use crate::Effort;
use crate::files::gzip;
use crate::program::Program;

const README: &str = include_str!("../../../packages/archive-README.md");

fn stem(program: &Program) -> String {
    format!("quorate-{}-{}-linux", program.version, program.machine.names().0)
}

pub(crate) fn name(program: &Program) -> String {
    format!("{}.tar.gz", stem(program))
}

pub(crate) fn make(program: &Program, effort: Effort) -> Vec<u8> {
    let mut files = program.installed();
    files.text("LICENSE", include_str!("../../../LICENSE"));
    files.text("README.md", README);
    gzip(&files.tar(&format!("{}/", stem(program))), effort)
}
