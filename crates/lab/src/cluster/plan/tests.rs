use super::*;

fn plans() -> impl Iterator<Item = Plan> {
    (0..2000).map(|seed| Plan::random(seed, 4, 3, 20 * SECOND))
}

#[test]
fn the_same_seed_makes_the_same_plan() {
    assert!(plans().eq(plans()));
    assert_ne!(
        Plan::random(1, 3, 3, SECOND).faults,
        Plan::random(2, 3, 3, SECOND).faults
    );
    assert!(Plan::random(3, 1, 0, MILLISECOND).duration == MILLISECOND);
}

#[test]
fn faults_end_after_two_thirds_and_one_client_stays() {
    for plan in plans() {
        let mut last = 0;
        for Planned { at, fault, .. } in &plan.faults {
            let end = at + fault.for_ns().unwrap_or(0);
            assert!(*at >= last && end <= plan.duration / 3 * 2, "{plan}");
            last = *at;
            if let Fault::CrashClient { client } = fault {
                // Whomever a cue is about: the simulation spares the first client.
                let is_spared = !matches!(client, Party::Subject | Party::Client(1..));
                assert!(!is_spared, "{plan}");
            }
            if let Fault::Drift { ppm, .. } = fault {
                assert!(ppm.abs() <= DRIFT_PPM_MAX);
            }
        }
    }
}

#[test]
fn plans_are_calm_wild_and_aimed() {
    let count = |wanted: fn(&Plan) -> bool| plans().filter(wanted).count();
    let is_primary = |fault: &Fault| {
        matches!(
            fault,
            Fault::Crash {
                member: Party::Primary,
                ..
            }
        )
    };
    assert!(count(|plan| plan.faults.is_empty()) > 20);
    assert!(count(|plan| plan.faults.len() > 15) > 200);
    let again = plans().filter(|plan| {
        let faults = plan.faults.iter();
        faults.filter(|planned| is_primary(&planned.fault)).count() >= 4
    });
    assert!(again.count() > 100);
    let names = [
        "crashes in",
        "client 1 crashes",
        "is gone for good",
        "is stopped, for",
        "is stopped within a step, for",
        "is cut from",
        "is isolated",
        "service is out",
        "drifts by",
        "are lost",
        "are damaged",
        "times slower",
    ];
    let all: String = plans().map(|plan| plan.to_string()).collect();
    for name in names {
        assert!(all.contains(name), "no plan has one that {name}");
    }
}

#[test]
fn a_plan_can_be_read() {
    let plan = Plan {
        seed: 7,
        duration: SECOND,
        faults: vec![
            Planned {
                at: 5 * MICROSECOND,
                cue: None,
                fault: Fault::Crash {
                    member: Party::Primary,
                    after_fences: 3,
                    for_ns: 20 * MILLISECOND,
                },
            },
            Planned {
                at: 9 * MILLISECOND,
                cue: None,
                fault: Fault::CrashClient {
                    client: Party::Client(2),
                },
            },
        ],
    };
    assert_eq!(
        plan.to_string(),
        "seed 7, 1000.000000 ms, 2 faults\n  \
         0.005000 ms: the primary crashes in 3 fences, for 20.000000 ms\n  \
         9.000000 ms: client 2 crashes"
    );
}

#[test]
fn shrinking_leaves_out_all_that_is_not_needed() {
    let plan = plans().find(|plan| plan.faults.len() > 20);
    let plan = plan.expect("some are wild");
    let needed = [plan.faults[3], plan.faults[11]];
    let fails = |plan: &Plan| {
        let has = |needed: &Planned| plan.faults.iter().any(|planned| planned.at == needed.at);
        needed.iter().all(has)
    };
    let minimal = shrink(plan.clone(), fails);
    assert_eq!((minimal.seed, minimal.duration), (plan.seed, plan.duration));
    let times: Vec<_> = minimal.faults.iter().map(|planned| planned.at).collect();
    assert_eq!(times, needed.map(|planned| planned.at));
    for planned in &minimal.faults {
        let for_ns = planned.fault.for_ns();
        assert!(for_ns.is_none_or(|for_ns| for_ns < 2 * MICROSECOND));
    }
    assert!(shrink(plan, |_| true).faults.is_empty());
}

#[test]
fn shrinking_shortens_as_far_as_it_fails() {
    let fault = Fault::MembershipOutage { for_ns: SECOND };
    let plan = Plan {
        seed: 0,
        duration: 3 * SECOND,
        faults: vec![Planned {
            at: 5,
            cue: None,
            fault,
        }],
    };
    let long = |planned: &Planned| planned.fault.for_ns() >= Some(100 * MILLISECOND);
    let minimal = shrink(plan, |plan| plan.faults.iter().any(long));
    assert_eq!(minimal.faults[0].fault.for_ns(), Some(SECOND / 8));
}
