//! The conversation with the kernel about one mount: what is agreed on at its start, and the threads that answer.

mod background;
mod classic;
mod negotiation;
mod processors;
mod queues;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::adapter::Adapter;
use crate::options::Choice;
use crate::{MountOptions, Notifier};
use classic::Share;
pub(crate) use negotiation::Offer;
use queues::Queues;

/// Longest read or write in one request, in bytes: what the store writes atomically.
pub(crate) const DATA_LENGTH_MAX: usize = 1 << 20;

/// The switch of the kernel's module for queues.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// How requests come from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By a queue of each processor, served by a thread on that processor.
    Uring {
        /// The queues.
        queues: usize,
        /// The kernel's module had them switched off until now.
        switched_on: bool,
    },
    /// From the device, read by several threads, and why.
    Classic(String),
}

impl std::fmt::Display for Transport {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Transport::Uring {
                queues,
                switched_on,
            } => {
                write!(out, "requests come by io_uring, {queues} queues")?;
                match switched_on {
                    true => write!(out, "; {PARAMETER} was switched on for that"),
                    false => Ok(()),
                }
            }
            Transport::Classic(why) => write!(out, "requests come from /dev/fuse: {why}"),
        }
    }
}

/// Whether the kernel's module has queues switched on, and whether that was done here.
#[derive(Clone, Copy)]
pub(crate) struct Switch {
    is_on: bool,
    switched_on: bool,
}

/// Sees to the switch, which has to be on before the mount is made.
pub(crate) fn switch(options: &MountOptions) -> Switch {
    let is_on = || fs::read(PARAMETER).is_ok_and(|text| text.starts_with(b"Y"));
    let was_on = is_on();
    let wanted = options.transport != Choice::Classic;
    let switched_on =
        wanted && !was_on && options.switch && fs::write(PARAMETER, "Y").is_ok() && is_on();
    Switch {
        is_on: was_on || switched_on,
        switched_on,
    }
}

/// A session that is being served.
pub(crate) struct Session {
    pub(crate) transport: Transport,
    pub(crate) notifier: Notifier,
    /// Ends when the mount has.
    server: JoinHandle<End>,
}

/// How a session ended: the conversation, and the file system's closing.
pub(crate) struct End {
    pub(crate) session: io::Result<()>,
    pub(crate) closed: Result<(), client::Error>,
}

impl Session {
    /// Agrees with the kernel and starts to answer.
    pub(crate) fn start(
        device: OwnedFd,
        mut adapter: Adapter,
        options: &MountOptions,
        switch: Switch,
    ) -> io::Result<Session> {
        let offer = Offer::receive(&device)?;
        let (queues, transport) = choose(&device, &offer, options, switch)?;
        offer.accept(&device, &mut adapter, options, queues.is_some())?;
        let adapter = Arc::new(adapter);
        let mut threads = Vec::new();
        let (readers, share) = match queues {
            Some(_) => (1, Share::Unanswered),
            None => (options.threads, Share::All),
        };
        if let Some(queues) = queues {
            threads.extend(queues.serve(&adapter)?);
        }
        let device = Arc::new(device);
        let notifier = Notifier::new(&device);
        threads.extend(classic::serve(device, readers, share, &adapter)?);
        let server = thread::Builder::new()
            .name("tako-session".into())
            .spawn(move || {
                let ended: Vec<io::Result<()>> = threads.into_iter().map(join).collect();
                End {
                    session: ended.into_iter().collect(),
                    closed: adapter.close(),
                }
            })?;
        Ok(Session {
            transport,
            notifier,
            server,
        })
    }

    /// Waits until the mount has ended and its file system is closed.
    pub(crate) fn join(self) -> End {
        self.server.join().unwrap_or_else(|_| End {
            session: Err(io::Error::other("the session's thread has panicked")),
            closed: Ok(()),
        })
    }
}

fn join(thread: JoinHandle<io::Result<()>>) -> io::Result<()> {
    let panicked = |_| {
        Err(io::Error::other(
            "a thread that answers requests has panicked",
        ))
    };
    thread.join().unwrap_or_else(panicked)
}

/// Prepares queues, if they are wanted and to be had.
fn choose(
    device: &OwnedFd,
    offer: &Offer,
    options: &MountOptions,
    switch: Switch,
) -> io::Result<(Option<Queues>, Transport)> {
    let queues = match options.transport {
        Choice::Classic => Err("it was asked for".into()),
        _ if offer.has_queues() => {
            Queues::prepare(device).map_err(|error| format!("io_uring is not to be had: {error}"))
        }
        _ if switch.is_on => Err("this kernel has no queues (Linux 6.14 brings them)".into()),
        _ => Err(format!("{PARAMETER} is not on (root may write Y to it)")),
    };
    match queues {
        Ok(queues) => {
            let transport = Transport::Uring {
                queues: queues.count(),
                switched_on: switch.switched_on,
            };
            Ok((Some(queues), transport))
        }
        Err(why) if options.transport == Choice::Uring => {
            let sentence = format!("{why}; mount with transport=auto to do without queues");
            Err(io::Error::new(io::ErrorKind::Unsupported, sentence))
        }
        Err(why) => Ok((None, Transport::Classic(why))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without queues there is the device, unless queues were insisted on; either way it is said why.
    #[test]
    fn what_cannot_be_had_is_said() {
        let device: OwnedFd = fs::File::open("/dev/null").unwrap().into();
        let offer = Offer::without_capabilities();
        let choose = |transport, is_on| {
            let options = MountOptions {
                transport,
                ..MountOptions::default()
            };
            let switch = Switch {
                is_on,
                switched_on: false,
            };
            choose(&device, &offer, &options, switch).map(|(queues, transport)| {
                assert!(queues.is_none());
                transport.to_string()
            })
        };
        let said = choose(Choice::Auto, true).unwrap();
        assert!(
            said.contains("/dev/fuse: this kernel has no queues"),
            "{said}"
        );
        let said = choose(Choice::Auto, false).unwrap();
        assert!(said.contains("enable_uring is not on"), "{said}");
        let said = choose(Choice::Classic, true).unwrap();
        assert!(said.contains("asked for"), "{said}");
        let refused = choose(Choice::Uring, false).unwrap_err();
        assert!(refused.to_string().contains("enable_uring"), "{refused}");
    }
}
