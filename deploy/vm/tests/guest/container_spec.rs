//! An OCI runtime specification from the manifest of the `DaemonSet`: the same mounts, capabilities
//! and namespaces.
//!
//! What the manifest does not say is set as containerd and CRI-O set it for a pod that is not
//! privileged: the file systems of the container's own, and the paths that they mask and
//! write-protect.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

/// Masked by the runtimes (OCI defaults of containerd, `oci/spec.go`).
const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// A volume of the pod in the guest.
pub(crate) struct Volume {
    pub(crate) source: String,
    pub(crate) target: String,
    pub(crate) writable: bool,
}

/// The pod of the manifest.
pub(crate) struct Pod {
    pod: Value,
    container: Value,
}

impl Pod {
    /// Reads the manifest.
    pub(crate) fn of(manifest: &str) -> Result<Self> {
        let manifest: Value = serde_saphyr::from_str(manifest)?;
        ensure!(manifest["kind"] == "DaemonSet", "not the DaemonSet");
        let pod = manifest["spec"]["template"]["spec"].clone();
        let containers = pod["containers"].as_array().context("no containers")?;
        let [container] = containers.as_slice() else { bail!("one container: {containers:?}") };
        Ok(Self { container: container.clone(), pod })
    }

    /// Where each volume is in the guest and in the container; volumes from the API server are
    /// directories of these names.
    pub(crate) fn volumes(&self, from_server: &BTreeMap<&str, &str>) -> Result<Vec<Volume>> {
        let volumes = self.pod["volumes"].as_array().context("no volumes")?;
        let mounts = self.container["volumeMounts"].as_array().context("no mounts")?;
        mounts
            .iter()
            .map(|mount| {
                let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]);
                let volume = volume.with_context(|| format!("no volume {}", mount["name"]))?;
                let host = volume["hostPath"]["path"].as_str();
                // What kubelet writes itself is known by the name of the volume.
                let is_own = volume["downwardAPI"].is_object();
                let name = if is_own { &volume["name"] } else { &volume["configMap"]["name"] };
                let served = name.as_str().and_then(|name| from_server.get(name).copied());
                Ok(Volume {
                    source: host.or(served).with_context(|| format!("what is {volume}?"))?.to_owned(),
                    target: mount["mountPath"].as_str().context("no mountPath")?.to_owned(),
                    writable: mount["readOnly"] != true,
                })
            })
            .collect()
    }

    /// `CAP_SYSLOG`, ...
    pub(crate) fn capabilities(&self) -> Result<Vec<String>> {
        let capabilities = &self.container["securityContext"]["capabilities"];
        ensure!(capabilities["drop"] == json!(["ALL"]), "not all capabilities are dropped first");
        let added = capabilities["add"].as_array().context("none is added")?;
        Ok(added.iter().filter_map(Value::as_str).map(|name| format!("CAP_{name}")).collect())
    }

    /// `config.json` of the OCI runtime specification, for an image with this entry point, unpacked
    /// into `rootfs`.
    pub(crate) fn config(&self, entrypoint: &str, volumes: &[Volume]) -> Result<Value> {
        let security = &self.container["securityContext"];
        ensure!(security["privileged"] != true, "the pod is privileged");
        let capabilities = self.capabilities()?;
        let mut arguments = vec![json!(entrypoint)];
        arguments.extend(self.container["args"].as_array().cloned().unwrap_or_default());
        let own = |target: &str, kind: &str, options: &[&str]| json!({"destination": target, "type": kind, "source": kind, "options": options});
        let mut mounts = vec![
            own("/proc", "proc", &["nosuid", "noexec", "nodev"]),
            own("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
            own("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        ];
        mounts.extend(volumes.iter().map(|volume| {
            let access = if volume.writable { "rw" } else { "ro" };
            json!({"destination": volume.target, "type": "bind", "source": volume.source, "options": ["rbind", "rprivate", access]})
        }));
        let mut namespaces = vec![json!({"type": "mount"})];
        for (kind, of_host) in
            [("pid", "hostPID"), ("ipc", "hostIPC"), ("uts", "hostNetwork"), ("network", "hostNetwork")]
        {
            if self.pod[of_host] != true {
                namespaces.push(json!({"type": kind}));
            }
        }
        Ok(json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": false,
                "user": {"uid": security["runAsUser"].as_u64().unwrap_or(0), "gid": 0},
                "args": arguments,
                "env": ["PATH=/usr/bin"],
                "cwd": "/",
                "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
                "noNewPrivileges": security["allowPrivilegeEscalation"] == false,
            },
            "root": {"path": "rootfs", "readonly": security["readOnlyRootFilesystem"] == true},
            "mounts": mounts,
            "linux": {"namespaces": namespaces, "maskedPaths": MASKED, "readonlyPaths": READ_ONLY},
        }))
    }
}
