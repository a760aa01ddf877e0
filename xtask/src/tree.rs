//! The project as the rules see it: its files and crates, as plain data that a test can write down.

use crate::code::code_only;
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Files that are read: every file with one of these endings, outside the directories named below.
const ENDINGS: [&str; 4] = ["rs", "md", "sh", "toml"];
const NOT_OURS: [&str; 3] = [".git", ".cache", "target"];

/// All that the rules judge.
pub struct Tree {
    pub files: Vec<File>,
    pub crates: Vec<Crate>,
}

/// A text file; its path counts from the root of the project.
pub struct File {
    pub path: String,
    pub text: String,
    /// Text of a Rust file without comments and literals; empty for other files.
    pub code: String,
}

/// A member of the workspace.
pub struct Crate {
    pub package: String,
    /// From the root of the project, such as `crates/store`.
    pub directory: String,
    /// The files from which the compiler reads its libraries and programs.
    pub roots: Vec<String>,
    pub dependencies: Vec<Dependency>,
}

/// A dependency of any kind: normal, build or development.
#[derive(Deserialize)]
pub struct Dependency {
    #[serde(rename = "name")]
    pub package: String,
    /// The name it goes by in the manifest, where that differs from the package's.
    pub rename: Option<String>,
}

impl Tree {
    /// Reads the project that the current directory belongs to.
    pub fn load() -> Result<Tree, String> {
        let (root, crates) = read_metadata(&run_cargo_metadata()?)?;
        let mut files = Vec::new();
        read_files(&root, &root, &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Tree { files, crates })
    }

    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    pub fn rust_files(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.ends_with(&["rs"]))
    }

    /// The member that a dependency names, if it is one of ours.
    pub fn member(&self, dependency: &Dependency) -> Option<&Crate> {
        let is_meant = |member: &&Crate| member.package == dependency.package;
        self.crates.iter().find(is_meant)
    }
}

impl File {
    pub fn new(path: String, text: String) -> File {
        let is_rust = path.ends_with(".rs");
        let code = if is_rust {
            code_only(&text)
        } else {
            String::new()
        };
        File { path, text, code }
    }

    pub fn ends_with(&self, endings: &[&str]) -> bool {
        let ending = self.path.rsplit_once('.').map(|(_, ending)| ending);
        ending.is_some_and(|ending| endings.contains(&ending))
    }

    /// The lines of the code with their numbers, counted from one.
    pub fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
    }
}

impl Crate {
    /// The name it goes by in the design: the last part of its directory.
    pub fn name(&self) -> &str {
        self.directory.rsplit('/').next().unwrap_or_default()
    }

    pub fn manifest(&self) -> String {
        format!("{}/Cargo.toml", self.directory)
    }
}

impl Dependency {
    /// The name it goes by in the manifest.
    pub fn key(&self) -> &str {
        self.rename.as_deref().unwrap_or(&self.package)
    }
}

fn run_cargo_metadata() -> Result<Vec<u8>, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo metadata cannot be run ({error}); install Rust"))?;
    if !output.status.success() {
        return Err("cargo metadata failed; correct the manifest it names".into());
    }
    Ok(output.stdout)
}

/// The root of the project and its crates, from what `cargo metadata` prints.
fn read_metadata(json: &[u8]) -> Result<(PathBuf, Vec<Crate>), String> {
    #[derive(Deserialize)]
    struct Metadata {
        workspace_root: PathBuf,
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        manifest_path: PathBuf,
        targets: Vec<Target>,
        dependencies: Vec<Dependency>,
    }
    #[derive(Deserialize)]
    struct Target {
        kind: Vec<String>,
        src_path: PathBuf,
    }

    let metadata: Metadata = serde_json::from_slice(json)
        .map_err(|error| format!("cargo metadata is not as expected ({error}); adapt xtask"))?;
    let root = metadata.workspace_root;
    let is_root = |target: &&Target| {
        target
            .kind
            .iter()
            .any(|kind| kind == "lib" || kind == "bin")
    };
    let crate_of = |package: Package| Crate {
        directory: relative(&root, package.manifest_path.parent().unwrap_or(&root)),
        roots: package
            .targets
            .iter()
            .filter(is_root)
            .map(|t| relative(&root, &t.src_path))
            .collect(),
        package: package.name,
        dependencies: package.dependencies,
    };
    let crates = metadata.packages.into_iter().map(crate_of).collect();
    Ok((root, crates))
}

fn read_files(root: &Path, directory: &Path, files: &mut Vec<File>) -> Result<(), String> {
    let explain = |path: &Path, error| format!("{} cannot be read ({error})", path.display());
    let entries = fs::read_dir(directory).map_err(|error| explain(directory, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| explain(directory, error))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(|error| explain(&path, error))?;
        let name = entry.file_name();
        if kind.is_dir() && !NOT_OURS.iter().any(|&other| name == other) {
            read_files(root, &path, files)?;
        } else if kind.is_file()
            && ENDINGS
                .iter()
                .any(|&e| path.extension() == Some(e.as_ref()))
        {
            let text = fs::read_to_string(&path).map_err(|error| explain(&path, error))?;
            files.push(File::new(relative(root, &path), text));
        }
    }
    Ok(())
}

fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root)
        .unwrap_or(path)
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_gives_directories_roots_and_dependencies_of_every_kind() {
        let json = br#"{"workspace_root": "/project", "packages": [{
            "name": "tako-store",
            "manifest_path": "/project/crates/store/Cargo.toml",
            "targets": [
                {"kind": ["lib"], "src_path": "/project/crates/store/src/lib.rs"},
                {"kind": ["test"], "src_path": "/project/crates/store/tests/all.rs"}],
            "dependencies": [
                {"name": "tako-pmem", "rename": "pmem", "kind": null},
                {"name": "libc", "rename": null, "kind": "dev"}]}]}"#;
        let (root, crates) = read_metadata(json).unwrap();
        assert_eq!(root, Path::new("/project"));
        let store = &crates[0];
        assert_eq!(
            (store.name(), store.package.as_str()),
            ("store", "tako-store")
        );
        assert_eq!(store.manifest(), "crates/store/Cargo.toml");
        assert_eq!(store.roots, ["crates/store/src/lib.rs"]);
        let keys: Vec<&str> = store.dependencies.iter().map(Dependency::key).collect();
        assert_eq!(keys, ["pmem", "libc"]);
    }
}
