//! Which packages there are and which features they have, asked of cargo: a new one is covered without a line here.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// A package of the workspace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Its features, `default` left out.
    pub(crate) features: Vec<String>,
}

impl Package {
    /// The sets of features to build with: none, each alone, all. One set stands once.
    pub(crate) fn feature_sets(&self) -> Vec<Vec<&str>> {
        let features: Vec<&str> = self.features.iter().map(String::as_str).collect();
        let mut sets = vec![Vec::new()];
        sets.extend(features.iter().map(|feature| vec![*feature]));
        if features.len() > 1 {
            sets.push(features);
        }
        sets
    }
}

/// Asks cargo. Fails when `Cargo.lock` is not what the manifests ask for.
pub(crate) fn of_workspace(root: &Path) -> Result<Vec<Package>, String> {
    let output = Command::new(crate::steps::cargo())
        .args(["metadata", "--no-deps", "--locked", "--format-version", "1"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|cause| format!("cannot run `cargo metadata`: {cause}"))?;
    if !output.status.success() {
        return Err(
            "`cargo metadata --locked` failed; if Cargo.lock is behind, run `cargo check` and commit it"
                .into(),
        );
    }
    parse(&output.stdout)
}

fn parse(metadata: &[u8]) -> Result<Vec<Package>, String> {
    let metadata: Value = serde_json::from_slice(metadata)
        .map_err(|cause| format!("cannot read what `cargo metadata` says: {cause}"))?;
    let packages = metadata["packages"].as_array().ok_or("`cargo metadata` lists no packages")?;
    packages
        .iter()
        .map(|package| {
            let name = package["name"].as_str().ok_or("`cargo metadata` lists a package without a name")?;
            let features = package["features"].as_object().into_iter().flatten();
            let features = features.map(|(name, _)| name.clone()).filter(|name| name != "default").collect();
            Ok(Package { name: name.to_owned(), features })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(features: &[&str]) -> Package {
        Package { name: "engine".into(), features: features.iter().map(|&name| name.into()).collect() }
    }

    #[test]
    fn features_are_tried_none_each_and_all() {
        let three = package(&["cuda", "nvtx", "record"]);
        let expected: [&[&str]; 5] = [&[], &["cuda"], &["nvtx"], &["record"], &["cuda", "nvtx", "record"]];
        assert_eq!(three.feature_sets(), expected);
        assert_eq!(package(&["record"]).feature_sets(), [vec![], vec!["record"]]);
        assert_eq!(package(&[]).feature_sets(), [Vec::<&str>::new()]);
    }

    #[test]
    fn default_is_no_feature_of_its_own() {
        let metadata = br#"{"packages": [
            {"name": "engine", "features": {"default": ["record"], "record": ["dep:x"]}},
            {"name": "xtask", "features": {}}
        ]}"#;
        let engine = package(&["record"]);
        assert_eq!(parse(metadata).unwrap(), [engine, Package { name: "xtask".into(), features: vec![] }]);
        assert!(parse(b"{}").is_err() && parse(b"not json").is_err());
    }

    #[test]
    fn this_workspace_has_its_rooms() {
        let packages = of_workspace(&crate::root()).unwrap();
        for room in ["marker-core", "backend-null", "backend-record", "engine", "xtask"] {
            assert!(packages.iter().any(|package| package.name == room), "{room}");
        }
        let core = packages.iter().find(|package| package.name == "marker-core").unwrap();
        assert!(core.features.iter().any(|feature| feature == "enabled"));
    }
}
