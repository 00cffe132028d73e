//! `ebla completion` and `ebla man`: what a shell and a manual reader need, made from the description of the commands.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;

use super::program;
use crate::output::{self, Failure};

/// Write a completion script for a shell
///
/// Examples:
///   source <(ebla completion bash)
///   ebla completion zsh > ~/.zfunc/_ebla
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Completion {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub shell: Shell,
}

/// Write the manual pages of all commands into a folder
///
/// Example:
///   ebla man ./man1 && man ./man1/ebla-tablet-server.1
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Man {
    /// Folder of the pages; it is made if it does not exist
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// Writes the script to stdout.
pub fn complete(completion: &Completion) {
    let mut script = Vec::new();
    clap_complete::generate(completion.shell, &mut program(), "ebla", &mut script);
    output::print_bytes(&script);
}

/// Writes the pages.
///
/// # Errors
/// When the folder or a page cannot be written.
pub fn man(man: &Man) -> Result<(), Failure> {
    let failure =
        |error: std::io::Error| Failure::other(format!("write manual pages to {}: {error}", man.folder.display()));
    fs::create_dir_all(&man.folder).map_err(failure)?;
    let mut program = program();
    program.build();
    let count = pages(&program, "ebla", &man.folder).map_err(failure)?;
    output::note(&format!("{count} pages in {}", man.folder.display()));
    Ok(())
}

/// Writes the page of a command and of its subcommands; the number of pages.
fn pages(command: &Command, name: &str, folder: &Path) -> std::io::Result<usize> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    fs::write(folder.join(format!("{name}.1")), page)?;
    let mut count = 1;
    for one in command.get_subcommands().filter(|one| one.get_name() != "help" && !one.is_hide_set()) {
        count += pages(one, &format!("{name}-{}", one.get_name()), folder)?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        man(&Man { folder: folder.path().join("man1") }).unwrap();
        let page = |name: &str| fs::read_to_string(folder.path().join("man1").join(name)).unwrap();
        assert!(page("ebla.1").contains("tablet\\-server"));
        assert!(page("ebla-tablet-server.1").contains("\\-\\-split\\-bytes"));
        assert!(page("ebla-table-create.1").contains("\\-\\-family"));
    }

    #[test]
    fn scripts_know_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut program(), "ebla", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("tablet-server") && script.contains("split-bytes"), "{shell}");
        }
    }
}
