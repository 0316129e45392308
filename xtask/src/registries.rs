//! Nothing in the tree may name a package registry but the public one: a mirror that one machine uses would
//! stop everybody else's build.

use std::fs;
use std::path::Path;

/// What Cargo.lock says of a package from the public registry.
const PUBLIC: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Folders whose files are not ours.
const NOT_OURS: [&str; 3] = ["target", ".git", "models"];

/// Fails with every place that names another registry.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let mut found = Vec::new();
    walk(root, root, &mut found).map_err(|cause| format!("cannot read the tree: {cause}"))?;
    if found.is_empty() {
        return Ok(());
    }
    Err(format!("these lines name a package registry that others may not reach:\n  {}", found.join("\n  ")))
}

fn walk(root: &Path, folder: &Path, found: &mut Vec<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let name = entry.file_name();
        if kind.is_dir() {
            if !NOT_OURS.iter().any(|other| name == *other) {
                walk(root, &path, found)?;
            }
        } else if kind.is_file()
            && let Ok(text) = fs::read_to_string(&path)
        {
            let path = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            found.extend(strays(&path, &text).into_iter().map(|line| format!("{path}:{line}")));
        }
    }
    Ok(())
}

/// The numbers of the lines that name a registry of somebody's own. `path` is relative to the workspace.
fn strays(path: &str, text: &str) -> Vec<usize> {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    let is_stray: fn(&str) -> bool = match name {
        "Cargo.lock" => |line| {
            let source = line.strip_prefix("source = ").map(|source| source.trim_matches('"'));
            source.is_some_and(|source| source != PUBLIC)
        },
        "Cargo.toml" => |line| ["registry =", "registry-index ="].iter().any(|key| line.contains(key)),
        _ if path.contains(".cargo") => |line| {
            let line = line.trim_start();
            ["[source", "[registr", "replace-with", "registry"].iter().any(|start| line.starts_with(start))
        },
        // The tests below speak of them.
        _ if Path::new(name).extension().is_some_and(|extension| extension == "rs") => |_| false,
        _ => |line| {
            ["index-url", "CARGO_REGISTRIES_", "CARGO_SOURCE_", "GOPROXY="]
                .iter()
                .any(|key| line.contains(key))
        },
    };
    text.lines().zip(1..).filter(|(line, _)| is_stray(line)).map(|(_, number)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_registry_is_no_stray() {
        let lock = format!("name = \"half\"\nsource = \"{PUBLIC}\"\n\nname = \"engine\"\n");
        assert!(strays("Cargo.lock", &lock).is_empty());
        assert!(strays(".cargo/config.toml", "[alias]\nxtask = \"run\"\n").is_empty());
        assert!(strays("Cargo.toml", "[dependencies]\nhalf = \"2\"\n").is_empty());
    }

    #[test]
    fn any_other_registry_is_found_with_its_line() {
        let lock = "name = \"half\"\nsource = \"registry+https://mirror.example/index\"\n";
        assert_eq!(strays("marker-core/proof/no-std/Cargo.lock", lock), [2]);
        assert_eq!(strays("Cargo.lock", "source = \"sparse+https://mirror.example/\""), [1]);
        assert_eq!(strays("Cargo.lock", "source = \"git+https://mirror.example/half\""), [1]);
        let config = "[alias]\n[source.crates-io]\nreplace-with = \"mirror\"\n[registries.own]\n";
        assert_eq!(strays(".cargo/config.toml", config), [2, 3, 4]);
        assert_eq!(strays("engine/Cargo.toml", "half = { version = \"2\", registry = \"own\" }"), [1]);
        assert_eq!(strays("scripts/setup.sh", "pip install --index-url https://mirror.example x"), [1]);
    }

    #[test]
    fn this_tree_has_none() {
        assert_eq!(check(&crate::root()), Ok(()));
    }
}
