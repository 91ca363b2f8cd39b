//! Steps like the recorded one whose blocks have other sizes.

use super::*;

#[test]
fn what_the_step_before_left_may_have_any_size_where_sizes_vary() {
    let ops: [Op; 1] = [("a", &[3])];
    let places = |sizes, found: &[u64]| {
        Path::of(&trace(&[1, 2, 8, 9], &ops), sizes).expect("ops in order").align_start(found)
    };
    let all: Vec<Option<u32>> = (0..4).map(Some).collect();
    assert_eq!(places(Sizes::UpTo, &[1, 2, 5, 6]), all);
    assert_eq!(places(Sizes::Same, &[1, 2, 5, 6]), [Some(0), Some(1), None, None]);
    // With one more or less nobody knows which is which.
    assert_eq!(places(Sizes::UpTo, &[1, 2, 5]), [Some(0), Some(1), None]);
    // One that was found elsewhere is not taken twice.
    assert_eq!(places(Sizes::UpTo, &[1, 7, 2, 8]), [Some(0), None, Some(1), Some(2)]);
}

#[test]
fn where_sizes_vary_blocks_may_be_smaller_or_missing() {
    let recorded: [Op; 5] =
        [("a", &[80]), ("b", &[8, 90]), ("a", &[80]), ("c", &[]), ("d", &[40, 4])];
    let whole = [Some(0), Some(1), Some(2), Some(3), Some(4)];
    let check = |ops: &[Op; 5], places: &[u32]| {
        let run = run_expecting(&recorded, Sizes::UpTo, ops);
        assert_eq!((run.ops.as_slice(), run.drifted()), (&whole[..], false));
        let bound: Vec<u32> = (0..7).filter(|&place| run.block(place).is_some()).collect();
        assert_eq!(bound, places);
        let found: Vec<usize> = places.iter().filter_map(|&place| run.block(place)).collect();
        assert!(found.is_sorted(), "in their order: {found:?}");
    };
    check(&recorded, &[0, 1, 2, 3, 4, 5]);
    check(
        &[("a", &[1]), ("b", &[1, 9]), ("a", &[2]), ("c", &[]), ("d", &[3, 3])],
        &[0, 1, 2, 3, 4, 5],
    );
    // The first of `b` is missing, and the second of `d`; then most.
    check(&[("a", &[9]), ("b", &[9]), ("a", &[9]), ("c", &[]), ("d", &[9])], &[0, 2, 3, 4]);
    check(&[("a", &[]), ("b", &[50]), ("a", &[]), ("c", &[]), ("d", &[])], &[2]);
    // Larger than any, and one more than there are: the path is kept.
    check(
        &[("a", &[99]), ("b", &[8, 99]), ("a", &[80, 7]), ("c", &[]), ("d", &[40, 4])],
        &[0, 1, 2, 3, 4, 5],
    );
}

#[test]
fn where_sizes_vary_small_blocks_are_told_by_what_came_before_them() {
    // `b` makes a small block before two others, and `c` one before and one behind.
    let recorded: [Op; 4] = [("a", &[80]), ("b", &[0, 60, 90]), ("c", &[0, 40, 0]), ("d", &[])];
    let check = |ops: [Op; 4], expected: [Option<usize>; 4]| {
        let run = run_expecting(&recorded, Sizes::UpTo, &ops);
        assert_eq!((run.follower.strayed_ops(), run.drifted()), (0, false));
        assert_eq!([0, 1, 2, 3].map(|place| run.block(place)), expected, "{ops:?}");
    };
    let all = [Some(0), Some(2), Some(3), Some(5)];
    check(recorded, all);
    check([("a", &[0]), ("b", &[0, 0, 0]), ("c", &[0, 0, 0]), ("d", &[])], all);
    check([("a", &[9]), ("b", &[0, 0, 9]), ("c", &[0, 4, 0]), ("d", &[])], all);
    // What was small there and is not here is none of them either.
    check([("a", &[99]), ("b", &[30, 99, 99]), ("c", &[20, 99, 0]), ("d", &[])], all);
    // Where all are as large as they were, small ones are not blocks.
    let run = run(&recorded, &recorded);
    assert_eq!([0, 1, 2, 3].map(|place| run.block(place)), all);
}

#[test]
fn off_the_path_small_blocks_stand_in_for_what_is_not_far_larger() {
    let recorded: [Op; 6] =
        [("a", &[80]), ("b", &[6, 60]), ("c", &[7]), ("d", &[]), ("e", &[]), ("f", &[])];
    let small = |requested_bytes: u64, nth: u32| Fresh {
        requested_bytes,
        size_bytes: 2,
        is_small: true,
        nth,
    };
    let stands_in = |fresh: Fresh| {
        let mut run = run_expecting(&recorded, Sizes::UpTo, &recorded[..1]);
        let key = OpKey::new(OpName::hash_of("other"), 0);
        run.follower.coming_op(key);
        run.follower.begun(key, 0);
        run.follower.coming_stand_in(fresh).map(|place| place.0)
    };
    assert_eq!(stands_in(small(1, 0)), Some(1));
    assert_eq!(stands_in(small(0, 0)), None, "whatever it takes as a swappable one");
    assert_eq!(stands_in(small(1, 1)), None, "those that came as late are far larger");
    assert_eq!(stands_in(fresh(9, 0)), Some(2), "one that is large may come at any place");
}

#[test]
fn where_sizes_vary_a_step_is_found_again_by_its_ops() {
    let recorded: [Op; 8] = [
        ("a", &[80]),
        ("b", &[90]),
        ("c", &[]),
        ("d", &[40]),
        ("e", &[30]),
        ("f", &[]),
        ("g", &[20]),
        ("h", &[]),
    ];
    let log: Op = ("log", &[7]);
    let run = run_expecting(
        &recorded,
        Sizes::UpTo,
        &[
            ("a", &[8]),
            ("b", &[9]),
            log,
            log,
            log,
            ("c", &[]),
            ("d", &[4]),
            ("e", &[3]),
            ("f", &[]),
            ("g", &[2]),
            ("h", &[]),
        ],
    );
    let known: Vec<u32> = run.ops.iter().copied().flatten().collect();
    assert_eq!(known, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((run.follower.strayed_ops(), run.drifted()), (3, false));
}

#[test]
fn a_step_goes_on_by_the_path_of_a_larger_one() {
    let path = |sizes: &'static [u64; 3]| {
        let ops: [Op; 3] = [("a", &sizes[..1]), ("b", &sizes[1..]), ("c", &[])];
        Arc::new(Path::of(&trace(&[5], &ops), Sizes::UpTo).expect("ops in order"))
    };
    let ids = ids();
    let (mut follower, _) = Follower::new(Some(path(&[10, 20, 30])), &[(ids[0], 5)]);
    let begin = |follower: &mut Follower, name: &str| {
        let key = OpKey::new(OpName::hash_of(name), 0);
        follower.coming_op(key);
        follower.begun(key, 0)
    };
    assert_eq!(begin(&mut follower, "a"), Some(OpIndex(0)));
    assert_eq!(follower.allocated(ids[1], fresh(40, 0)), Some(BlockIndex(1)));
    follower.change_path(&path(&[40, 80, 120]));
    let rejoined = follower.take_rejoined().expect("what came before is to be made up for");
    assert_eq!((rejoined.skipped, rejoined.bound.len()), (0..1, 0));
    assert_eq!(begin(&mut follower, "b"), Some(OpIndex(1)));
    assert_eq!(follower.allocated(ids[2], fresh(80, 0)), Some(BlockIndex(2)));
    assert_eq!(follower.block(BlockIndex(1)), Some(ids[1]));
    assert_eq!(follower.drifted_at(), Some(OpIndex(2)));
    assert_eq!(begin(&mut follower, "c"), Some(OpIndex(2)));
    assert_eq!(follower.drifted_at(), None);
}
