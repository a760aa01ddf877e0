//! `tako keys`.

use std::io::Write;
use std::time::SystemTime;

use connections::keys::{self, Made, show_identity};

use crate::arguments::Keys;
use crate::failure::{Failure, Outcome};

pub fn run(command: &Keys, out: &mut dyn Write) -> Outcome {
    match command {
        Keys::Init { directory, name } => {
            let node = match name {
                Some(name) => name.clone(),
                None => host()?,
            };
            let made = keys::init(directory, &node)?;
            let cluster = show_identity(&made.cluster);
            let authority = directory.join("authority.key");
            let authority = authority.display();
            writeln!(
                out,
                "cluster {cluster}: keep {authority}, which issues keys, on a machine without a node"
            )?;
            tell(&made, &node, out)
        }
        Keys::Issue { directory, name } => {
            let made = keys::issue(directory, name, keys::usual_validity())?;
            tell(&made, name, out)
        }
        Keys::Revoke { directory, name } => {
            let revoked = keys::revoke(directory, name)?;
            let (list, count) = (revoked.list.display(), revoked.certificates);
            writeln!(
                out,
                "node {name}: certificates revoked: {count}; copy {list} to the directories of all other nodes, which read it \
                 before each connection"
            )?;
            Ok(())
        }
    }
}

fn tell(made: &Made, node: &str, out: &mut dyn Write) -> Outcome {
    let left = made.until.duration_since(SystemTime::now());
    let days = left.unwrap_or_default().as_secs() / (24 * 60 * 60);
    let directory = made.directory.display();
    writeln!(
        out,
        "node {node}: give it the directory {directory}; its keys are valid for {days} days"
    )?;
    Ok(())
}

/// The name of this host, without its domain.
fn host() -> Result<String, Failure> {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy().to_lowercase();
    match name.split('.').next() {
        Some(label) if keys::is_node_name(label) => Ok(label.into()),
        _ => Err(Failure::Usage(format!(
            "this host's name, '{name}', cannot be a node's; name the node after the directory"
        ))),
    }
}
