//! The Kubernetes manifests: their Kustomize output against the schemas and the chart. Boots no
//! guest.

use std::fs;
use std::process;

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::packages;
use kprobed_vm::python::{Environment, Requirements};
use serde_json::Value;

use crate::Test;
use crate::container::{deploy, run};
use crate::effort::pick;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        manifests_are_rendered,
        the_chart_is_the_base,
    }
};

/// The base and every overlay, as `kubectl apply -k` would send them. With full effort they are
/// checked against the schemas of Kubernetes too.
fn manifests_are_rendered(fixture: &Fixture) -> Result<()> {
    packages::ensure_programs(&[("kubectl", "kubernetes-client")])?;
    let schemas = || Environment::ensure(fixture.lab()?.cache(), Requirements::KUBERNETES);
    let schemas = pick(false, true).then(schemas).transpose()?;
    let kubernetes = deploy()?.join("kubernetes");
    let mut directories = vec![kubernetes.join("base")];
    for overlay in fs::read_dir(kubernetes.join("overlays"))? {
        directories.push(overlay?.path());
    }
    ensure!(directories.len() > 2, "{directories:?}");
    for directory in directories {
        let text = run(process::Command::new("kubectl").arg("kustomize").arg(&directory))?;
        if let Some(schemas) = &schemas {
            let file = tempfile::NamedTempFile::new()?;
            fs::write(&file, &text)?;
            run(process::Command::new(schemas.program("kubernetes-validate"))
                .arg("--strict")
                .arg(file.path()))?;
        }
        let of_kind = |kind: &str| {
            let documents =
                text.split("\n---\n").filter_map(|text| serde_saphyr::from_str::<Value>(text).ok());
            documents.filter(|document| document["kind"] == kind).collect::<Vec<_>>()
        };
        let sets = of_kind("DaemonSet");
        let [set] = sets.as_slice() else { anyhow::bail!("{}: {text}", directory.display()) };
        let pod = &set["spec"]["template"]["spec"];
        ensure!(set["metadata"]["namespace"] == "kprobed", "{set}");
        let maps = of_kind("ConfigMap");
        let named: Vec<&Value> = maps.iter().map(|map| &map["metadata"]["name"]).collect();
        for volume in pod["volumes"].as_array().context("no volumes")? {
            let wanted = &volume["configMap"]["name"];
            ensure!(wanted.is_null() || named.contains(&wanted), "{volume} is not among {named:?}");
        }
        // What is shipped is a configuration that the daemon takes, as far as this machine can
        // judge.
        let configuration = maps.iter().find_map(|map| map["data"]["kprobed.toml"].as_str());
        let configuration = configuration.context("no kprobed.toml")?;
        for setting in ["directory = \"/etc/kprobed/probes.d\"", "procfs = \"/host/proc\""] {
            ensure!(configuration.contains(setting), "{}: {setting}", directory.display());
        }
    }
    Ok(())
}

/// The chart has the pod and the files of the base. Helm is not there to render it: its template
/// has nothing but values as JSON.
fn the_chart_is_the_base(_: &Fixture) -> Result<()> {
    let kubernetes = deploy()?.join("kubernetes");
    let read = |path: &str| fs::read_to_string(kubernetes.join(path)).with_context(|| path.to_owned());
    let values: Value = serde_saphyr::from_str(&read("chart/values.yaml")?)?;
    let rendered = |path: &str| -> Result<String> {
        let template = read(path)?;
        let mut pieces = template.split("{{ ");
        let mut text = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let (action, rest) = piece.split_once(" }}").context("an action without an end")?;
            let value = match action.strip_suffix(" | toJson").context("not as JSON")? {
                ".Release.Namespace" => "kprobed".into(),
                ".Values.config | sha256sum" => "checksum".into(),
                name => values[name.strip_prefix(".Values.").with_context(|| name.to_owned())?].clone(),
            };
            ensure!(!value.is_null(), "{action}: there is no such value");
            text.push_str(&value.to_string());
            text.push_str(rest);
        }
        Ok(text)
    };
    let set: Value = serde_saphyr::from_str(&rendered("chart/templates/daemonset.yaml")?)?;
    let mut base: Value = serde_saphyr::from_str(&read("base/daemonset.yaml")?)?;
    base["spec"]["template"]["spec"]["containers"][0]["image"] = values["image"].clone();
    ensure!(set["spec"]["template"]["spec"] == base["spec"]["template"]["spec"], "{set}\nis not\n{base}");
    ensure!(set["spec"]["updateStrategy"] == base["spec"]["updateStrategy"], "{set}");
    let labels = &set["spec"]["template"]["metadata"]["labels"];
    ensure!(*labels == set["spec"]["selector"]["matchLabels"] && labels.is_object(), "{set}");
    let others = rendered("chart/templates/config.yaml")?;
    let maps: Vec<Value> = others.split("\n---\n").map(serde_saphyr::from_str).collect::<Result<_, _>>()?;
    let data =
        |name: &str| maps.iter().find(|map| map["metadata"]["name"] == name && map["kind"] == "ConfigMap");
    let (config, probes) = (data("kprobed-config").context("none")?, data("kprobed-probes").context("none")?);
    ensure!(config["data"]["kprobed.toml"] == read("base/kprobed.toml")?.as_str(), "{config}");
    ensure!(probes["data"]["open.yaml"] == read("base/probes.d/open.yaml")?.as_str(), "{probes}");
    Ok(())
}
