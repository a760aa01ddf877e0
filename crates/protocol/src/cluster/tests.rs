//! The cluster map's rules, and its two encodings.

use super::*;

fn map() -> ClusterMap {
    let empty = ClusterMap {
        cluster: [0xa5; 16],
        name: "lab".into(),
        version: 1,
        units: vec![UnitEntry {
            members: 2,
            ..UnitEntry::default()
        }],
        ..ClusterMap::default()
    };
    let (one, first) = empty.register("n1", [1; 16], vec!["/run/n1".into()]);
    let (two, second) = one.register("n2", [2; 16], vec!["10.0.0.2:7474".into()]);
    assert_eq!((first, second), (1, 2));
    two.form(0, vec![second, first]).expect("it is not formed")
}

#[test]
fn both_encodings_keep_the_map() {
    let map = map();
    assert_eq!(ClusterMap::decode(&map.encode()), Ok(map.clone()));
    let json = serde_json::to_string(&map).expect("it is JSON");
    assert!(json.contains(&"a5".repeat(16)), "{json}");
    assert_eq!(serde_json::from_str::<ClusterMap>(&json).ok(), Some(map));
}

#[test]
fn cut_maps_and_trailing_bytes_are_refused() {
    let bytes = map().encode();
    for end in 0..bytes.len() {
        assert!(ClusterMap::decode(&bytes[..end]).is_err(), "cut at {end}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(ClusterMap::decode(&longer).is_err());
}

#[test]
fn invalid_maps_are_refused() {
    let changes: [fn(&mut ClusterMap); 8] = [
        |map| map.nodes[1].id = 1,
        |map| map.nodes[1].id = FIRST_CLIENT,
        |map| map.nodes[0].name = "n".repeat(NAME_LENGTH_MAX + 1),
        |map| map.name = "n".repeat(NAME_LENGTH_MAX + 1),
        |map| map.nodes[0].addresses = vec![String::new(); ADDRESSES_MAX + 1],
        |map| map.units.push(map.units[0].clone()),
        |map| map.units[0].map.members.push(3),
        |map| map.units[0].map.version = 0,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut map = map();
        change(&mut map);
        assert!(ClusterMap::decode(&map.encode()).is_err(), "change {index}");
    }
}

#[test]
fn a_lost_pool_gets_a_new_identity_and_a_known_one_keeps_its_own() {
    let map = map();
    let (again, id) = map.register("n1", [1; 16], vec!["/run/other".into()]);
    assert_eq!((id, again.nodes.len()), (1, 2));
    assert_eq!(again.nodes[0].addresses, ["/run/other"]);
    let (lost, id) = map.register("n1", [9; 16], Vec::new());
    assert_eq!(id, 3);
    assert_eq!(lost.node_named("n1").map(|node| node.id), Some(3));
}

#[test]
fn a_unit_takes_only_the_map_after_its_own() {
    let map = map();
    assert_eq!(map.form(0, vec![1]), None, "it is formed");
    let unit = &map.units[0].map;
    assert_eq!(map.with_unit(0, unit.clone()), None);
    assert_eq!(map.with_unit(0, unit.next().next()), None);
    let next = map.with_unit(0, unit.next()).expect("it is the next one");
    assert_eq!(
        (next.version, next.units[0].map.version),
        (map.version + 1, 2)
    );
}

#[test]
fn an_older_epoch_gets_the_map_at_most_every_20_ms() {
    let mut rule = EpochRule::default();
    let start = 1_000_000_000;
    assert_eq!(rule.judge(start, 7, 3, 3), Judgement::Current);
    assert_eq!(rule.judge(start, 7, 4, 3), Judgement::AskMembership);
    assert_eq!(rule.judge(start, 7, 2, 3), Judgement::SendMap);
    assert_eq!(rule.judge(start + PAUSE_END - 1, 7, 2, 3), Judgement::Drop);
    assert_eq!(rule.judge(start, 8, 2, 3), Judgement::SendMap);
    assert_eq!(rule.judge(start + PAUSE_END, 7, 2, 3), Judgement::SendMap);
}

const PAUSE_END: u64 = 20_000_000;
