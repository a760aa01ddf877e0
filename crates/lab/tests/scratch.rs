use lab::cluster::plan::{self, Plan};
use lab::cluster::time::SECOND;
use lab::cluster::world::{Setup, World};
use protocol::{Defect, Defects};
fn go(seed: u64, defects: &Defects, plan: &Plan, trace: bool) -> (Result<(), String>, Vec<String>) {
    let setup = Setup {
        defects: defects.clone(),
        ..Setup::usual(seed, 30 * SECOND)
    };
    let mut world = World::new(setup, plan.clone()).unwrap();
    if trace {
        world = world.with_trace();
    }
    let r = world.run().map(|_| ());
    (r, world.trace().to_vec())
}
#[test]
fn scratch() {
    let get = |n: &str| std::env::var(n).ok();
    let first: u64 = get("FIRST").map_or(0, |v| v.parse().unwrap());
    let count: u64 = get("COUNT").map_or(100, |v| v.parse().unwrap());
    let stop: usize = get("STOP").map_or(1, |v| v.parse().unwrap());
    let names = get("DEFECT").unwrap_or_default();
    let list: Vec<(String, Defects)> = if names.is_empty() {
        vec![("sound".into(), Defects::default())]
    } else {
        Defect::ALL
            .iter()
            .filter(|d| names == "all" || names.split(',').any(|n| n == format!("{d:?}")))
            .map(|d| (format!("{d:?}"), Defects::of(*d)))
            .collect()
    };
    for (name, defects) in list {
        let mut found = 0;
        let t = std::time::Instant::now();
        for seed in first..first + count {
            let setup = Setup::usual(seed, 30 * SECOND);
            let mut p = Plan::random(seed, setup.members, setup.clients, setup.duration);
            if get("MATCH").is_some_and(|m| !p.to_string().contains(&m)) {
                continue;
            }
            let (r, _) = go(seed, &defects, &p, false);
            if get("FAULTS").is_some() {
                println!("== {seed}");
                for l in go(seed, &defects, &p, true).1 {
                    if l.contains("fault:") || l.contains("map is") {
                        println!("{}", l.chars().take(150).collect::<String>());
                    }
                }
            }
            if let Err(e) = r {
                println!(
                    "{name} {seed}: {}",
                    e.chars().take(300).collect::<String>().replace('\n', " | ")
                );
                found += 1;
                if get("SHRINK").is_some() {
                    p = plan::shrink(p, |p| go(seed, &defects, p, false).0.is_err());
                    println!("{p}");
                    println!("{:?}", go(seed, &defects, &p, false).0);
                }
                if get("TRACE").is_some() {
                    for l in go(seed, &defects, &p, true).1 {
                        println!("{l}");
                    }
                }
                if found >= stop {
                    break;
                }
            }
        }
        println!(
            "{name}: {found} found in {:.1} s",
            t.elapsed().as_secs_f64()
        );
    }
}
