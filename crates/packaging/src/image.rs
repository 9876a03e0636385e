//! A container image in the layout of the Open Container Initiative, made from nothing.
//!
//! One layer: the program, a user without rights, and directories for data. `docker load`, `podman load`
//! and `skopeo copy oci-archive:` take the file. A program that is not static brings its libraries.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::files::{Files, gzip};
use crate::program::Program;
use crate::{Effort, PackageError};

/// The user of the image, as in other images without an operating system.
const USER: u64 = 65_532;

/// Where a member keeps its data, and what to mount.
const DATA: &str = "data";

pub(crate) fn name(program: &Program) -> String {
    format!("quorate-{}-{}-oci.tar", program.version, program.machine.names().2)
}

pub(crate) fn make(program: &Program, effort: Effort) -> Result<Vec<u8>, PackageError> {
    let layer = layer(program)?;
    let packed = gzip(&layer, effort);
    let config = config(program, &layer).to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &packed)],
    });
    let manifest = manifest.to_string().into_bytes();
    let tag = format!("quorate:{}", program.version);
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    entry["annotations"] = json!({
        "io.containerd.image.name": format!("docker.io/library/{tag}"),
        "org.opencontainers.image.ref.name": program.version,
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    });
    // For docker load of versions that do not know the layout.
    let docker = json!([{
        "Config": blob(&config),
        "RepoTags": [tag],
        "Layers": [blob(&packed)],
    }]);
    let mut files = Files::default();
    files.text("oci-layout", json!({ "imageLayoutVersion": "1.0.0" }).to_string());
    files.text("index.json", index.to_string());
    files.text("manifest.json", docker.to_string());
    for bytes in [config, packed, manifest] {
        files.text(&blob(&bytes), bytes);
    }
    Ok(files.tar(""))
}

fn layer(program: &Program) -> Result<Vec<u8>, PackageError> {
    let mut files = program.installed();
    files.text("etc/passwd", format!("quorate:x:{USER}:{USER}::/{DATA}:/usr/bin/quorate\n"));
    files.text("etc/group", format!("quorate:x:{USER}:\n"));
    files.text("etc/nsswitch.conf", "hosts: files dns\n");
    files.directory(DATA, 0o700, USER);
    files.directory("tmp", 0o1777, 0);
    for library in program.libraries() {
        let bytes = std::fs::read(&library)
            .map_err(|source| PackageError::File { path: library.clone(), source })?;
        files.program(library.display().to_string().trim_start_matches('/'), bytes);
    }
    Ok(files.tar(""))
}

fn config(program: &Program, layer: &[u8]) -> Value {
    json!({
        "architecture": program.machine.names().2,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Env": ["PATH=/usr/bin"],
            "Entrypoint": ["/usr/bin/quorate"],
            "Cmd": ["serve", "--data", format!("/{DATA}"), "--bind", "0.0.0.0", "--auth"],
            "WorkingDir": format!("/{DATA}"),
            "ExposedPorts": { "27017/tcp": {} },
            "Volumes": { format!("/{DATA}"): {} },
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "quorate",
                "org.opencontainers.image.version": program.version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", digest(layer))] },
        "history": [{ "created": "1970-01-01T00:00:00Z", "created_by": "cargo xtask package" }],
    })
}

fn descriptor(kind: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": kind, "digest": format!("sha256:{}", digest(bytes)), "size": bytes.len() })
}

fn blob(bytes: &[u8]) -> String {
    format!("blobs/sha256/{}", digest(bytes))
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
