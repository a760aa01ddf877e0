//! Clusters: `tako serve`, `up`, `down` and `status`.

mod config;
mod control;
mod down;
mod grow;
mod inside;
mod process;
mod serve;
mod status;
mod up;

pub use down::run as down;
pub use grow::run as grow;
pub use serve::run as serve;
pub use status::run as status;
pub use up::run as up;
