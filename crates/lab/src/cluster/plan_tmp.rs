//! x
use super::time::{MILLISECOND, SECOND, Time};
use crate::random::Random;
/// x
#[derive(Clone, Debug)]
pub enum Fault { /// x
 Crash(usize), /// x
 CrashSoon(usize), /// x
 Isolate(u32, Time), /// x
 Cut(u32, u32, Time), /// x
 Outage(Time), /// x
 CrashClient(usize), /// x
 Lose(u32, Time) }
/// x
#[derive(Clone, Debug, Default)]
pub struct Plan { /// x
 pub faults: Vec<(Time, Fault)> }
impl Plan {
 /// x
 pub fn random(seed: u64, members: u32, clients: u32, duration: Time) -> Plan {
  let mut r = Random::new(seed ^ 77);
  let mut faults = Vec::new();
  let count = r.below(14);
  for _ in 0..count {
   let at = r.between(0, duration * 2 / 3);
   let m = r.below(members as usize);
   let long = r.between(MILLISECOND, 4 * SECOND);
   let node = |r: &mut Random| if r.one_in(2) { r.below(members as usize) as u32 } else { 100 + r.below(clients as usize) as u32 };
   let f = match r.below(8) { 0 => Fault::Crash(m), 1 | 2 => Fault::CrashSoon(m), 3 => Fault::Isolate(node(&mut r), long), 4 => Fault::Cut(node(&mut r), r.below(members as usize) as u32, long), 5 => Fault::Outage(long), 6 => Fault::CrashClient(r.below(clients as usize)), _ => Fault::Lose(r.between(10, 300) as u32, long) };
   faults.push((at, f));
  }
  Plan { faults }
 }
}
