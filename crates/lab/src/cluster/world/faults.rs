//! Faults of the plan, at their time or at their cue.

use super::{FIRST_CLIENT, MILLISECOND, SECOND, Time, World, WorldEvent};
use protocol::NO_NODE;
use protocol::wire::Acknowledge;

use crate::cluster::plan::{Cue, Fault, Party};

impl World {
    /// Something was seen that faults may wait for.
    pub(super) fn sight(&mut self, now: Time, seen: Cue, subject: u32) {
        let plan = &self.plan;
        let is_due = |index: &mut usize| {
            let planned = &plan.faults[*index];
            now >= planned.at && planned.cue.is_some_and(|(cue, _)| cue == seen)
        };
        let due: Vec<usize> = self.armed.extract_if(.., is_due).collect();
        for index in due {
            let (_, later) = self.plan.faults[index].cue.expect("it waited for one");
            let subject = Some(subject);
            self.queue
                .add(now + later, WorldEvent::Fault { index, subject });
        }
    }

    pub(super) fn fault(
        &mut self,
        now: Time,
        index: usize,
        subject: Option<u32>,
    ) -> Result<(), String> {
        let end = self.plan.end();
        let Some(fault) = self.plan.faults[index].fault.until(now, end) else {
            return Ok(());
        };
        self.note(|| format!("fault: {fault:?}, subject {subject:?}"));
        match fault {
            Fault::Crash {
                member,
                after_fences,
                for_ns,
            } => {
                for member in self.members(member, subject) {
                    self.crash_member(now, member, after_fences, now + for_ns);
                }
            }
            Fault::Replace { member, is_lost } => {
                for member in self.members(member, subject) {
                    let again = WorldEvent::Fault { index, subject };
                    self.replace(now, member as u32, is_lost, again)?;
                }
            }
            Fault::CrashClient { client } => {
                for node in self.nodes(client, subject) {
                    self.crash_client(now, node);
                }
            }
            Fault::Isolate { node, for_ns } => {
                for node in self.nodes(node, subject) {
                    self.links.isolate(node, now + for_ns);
                }
            }
            Fault::MembershipOutage { for_ns } => self.membership.fail(now + for_ns),
            Fault::Pause { node, .. }
            | Fault::Drift { node, .. }
            | Fault::HearsLate { node, .. }
            | Fault::StepDate { member: node, .. } => {
                for node in self.nodes(node, subject) {
                    self.fault_of_node(now, node, fault);
                }
            }
            Fault::Rush { client, blocks } => {
                for node in self.nodes(client, subject) {
                    self.rush(now, node, blocks);
                }
            }
            Fault::Look { client } => {
                for node in self.nodes(client, subject) {
                    self.look(now, node);
                }
            }
            Fault::Loss { permille, for_ns } => self.links.lose(now, permille, now + for_ns),
            Fault::Corruption { permille, for_ns } => {
                self.links.corrupt(now, permille, now + for_ns);
            }
            Fault::Cut { from, to, .. }
            | Fault::StuckWay { from, to, .. }
            | Fault::SlowLink { from, to, .. }
            | Fault::LateLink { from, to, .. } => {
                for from in self.nodes(from, subject) {
                    for to in self.nodes(to, subject) {
                        self.fault_of_link(now, from, to, fault);
                    }
                }
            }
        }
        Ok(())
    }

    fn fault_of_node(&mut self, now: Time, node: u32, fault: Fault) {
        match fault {
            Fault::Pause {
                is_in_step, for_ns, ..
            } => self.pause(node, (now, now + for_ns), is_in_step),
            Fault::Drift { ppm, .. } => self.drift(now, node, ppm),
            Fault::HearsLate { by_ms, .. } => {
                self.map_lag.insert(node, Time::from(by_ms) * MILLISECOND);
            }
            Fault::StepDate { hours, .. } if node < FIRST_CLIENT => {
                self.step_date(node as usize, hours);
            }
            _ => {}
        }
    }

    fn fault_of_link(&mut self, now: Time, from: u32, to: u32, fault: Fault) {
        let links = &mut self.links;
        match fault {
            Fault::Cut { for_ns, .. } => links.cut(from, to, now + for_ns),
            Fault::SlowLink { factor, for_ns, .. } => {
                links.slow(now, from, to, factor, now + for_ns);
            }
            Fault::LateLink { by_ms, for_ns, .. } => {
                links.delay_by(now, from, to, by_ms, now + for_ns);
            }
            Fault::StuckWay { for_ns, .. } => {
                let client = (from - FIRST_CLIENT) as usize;
                self.ways.stick(client, to, now + for_ns);
            }
            _ => {}
        }
    }

    /// The first client stays, so that one client sees the result.
    pub(super) fn crash_client(&mut self, now: Time, node: u32) {
        if node <= FIRST_CLIENT {
            return;
        }
        let client = (node - FIRST_CLIENT) as usize;
        self.workers[client].crash(now, &mut self.lost);
        let at = now + self.random.between(MILLISECOND, 4 * SECOND);
        self.queue.add(at, WorldEvent::StartClient(client));
    }

    fn rush(&mut self, now: Time, node: u32, blocks: u32) {
        let client = (node - FIRST_CLIENT) as usize;
        for operation in self.workers[client].rush(blocks) {
            self.submit(now, client, operation, Acknowledge::Primary);
        }
    }

    fn look(&mut self, now: Time, node: u32) {
        let client = (node - FIRST_CLIENT) as usize;
        for operation in self.workers[client].look() {
            self.submit(now, client, operation, Acknowledge::Primary);
        }
    }

    fn drift(&mut self, now: Time, node: u32, ppm: i32) {
        match node.checked_sub(FIRST_CLIENT) {
            Some(client) => self.workers[client as usize].set_drift(now, ppm),
            None => self.machines[node as usize].clock.set_drift(now, ppm),
        }
    }

    fn crash_member(&mut self, now: Time, member: usize, after_fences: u32, until: Time) {
        if self.is_gone(member as u32) {
            return;
        }
        if after_fences == 0 {
            self.machines[member].crash();
        } else {
            self.machines[member].arm(u64::from(after_fences));
        }
        self.queue
            .add(until.max(now), WorldEvent::StartMember(member));
    }

    /// Those of them that are members.
    fn members(&self, party: Party, subject: Option<u32>) -> Vec<usize> {
        let nodes = self.nodes(party, subject).into_iter();
        let members = nodes.filter(|node| *node < FIRST_CLIENT);
        members.map(|node| node as usize).collect()
    }

    fn nodes(&self, party: Party, subject: Option<u32>) -> Vec<u32> {
        let primary = match self.membership.valid().primary {
            NO_NODE => 0,
            primary => primary,
        };
        let bystanders = || {
            let members = self.membership.valid().members.clone();
            let members = members.into_iter();
            members.filter(move |node| *node != primary && Some(*node) != subject)
        };
        match party {
            Party::Member(member) => vec![self.in_place_of(member)],
            Party::Client(client) => vec![FIRST_CLIENT + client],
            Party::Primary => vec![primary],
            Party::Subject => subject.into_iter().collect(),
            Party::Bystanders => bystanders().collect(),
        }
    }
}
