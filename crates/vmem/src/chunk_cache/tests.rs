//! Which chunk serves, which are given back, and how much is held.

use super::*;
use proptest::prelude::*;

/// A cache with chunks of these sizes, numbered from 0, oldest first.
fn cached(limit_bytes: u64, sizes: &[u64]) -> ChunkCache<usize> {
    let mut cache = ChunkCache::new(limit_bytes);
    sizes.iter().for_each(|&size| cache.charge(Fit::exact(size)));
    sizes.iter().enumerate().for_each(|(chunk, &size)| cache.put(Fit::exact(size), chunk));
    cache
}

fn by_need(limit_bytes: u64, sizes: &[u64]) -> ChunkCache<usize> {
    let mut cache = cached(limit_bytes, sizes);
    cache.hold_by_need();
    cache
}

fn take(cache: &mut ChunkCache<usize>, size_bytes: u64) -> Option<usize> {
    cache.serve(Fit::exact(size_bytes), |_| false)
}

/// A block as the pool would allocate it. Returns its fit, and how many chunks it made.
fn allocate(cache: &mut ChunkCache<()>, size_bytes: u64) -> (Fit, u64) {
    let fit = cache.best_fit(size_bytes);
    if cache.serve(fit, |_| true).is_some() {
        return (fit, 0);
    }
    assert!(matches!(cache.make_room(fit.chunk_bytes), Room::After(_)), "there is room");
    cache.charge(fit);
    (fit, 1)
}

#[test]
fn a_freed_chunk_serves_first_then_the_oldest() {
    let mut cache = cached(100, &[10, 10, 10]);
    assert_eq!(cache.serve(Fit::exact(10), |&chunk| chunk == 1), Some(1));
    assert_eq!(take(&mut cache, 10), Some(0));
    assert_eq!(take(&mut cache, 20), None);
    assert_eq!((cache.held_bytes(), cache.cached_bytes()), (30, 10));
}

#[test]
fn the_oldest_chunks_make_room_and_no_more_than_needed() {
    let mut cache = cached(60, &[20, 10, 20]);
    assert_eq!(cache.make_room(35), Room::After(vec![(20, 0), (10, 1)]));
    cache.charge(Fit::exact(35));
    assert_eq!(cache.held_bytes(), 55);
    assert_eq!(cache.make_room(30), Room::Short(5));
    assert_eq!((cache.held_bytes(), cache.cached_bytes()), (55, 20));
    assert_eq!(cache.held_bytes_peak(), 55);
}

#[test]
fn chunks_that_are_just_enough_are_all_that_goes() {
    let mut cache = cached(60, &[20, 20, 20]);
    assert_eq!(cache.make_room(20), Room::After(vec![(20, 0)]));
}

#[test]
fn of_several_that_are_wanted_the_last_one_cached_serves() {
    let mut cache = cached(100, &[10, 10, 10, 10]);
    assert_eq!(cache.take_if(Fit::exact(10), |&chunk| chunk < 3), Some(2));
    assert_eq!(cache.take_if(Fit::exact(10), |&chunk| chunk < 3), Some(1));
    assert_eq!(cache.take_if(Fit::exact(10), |&chunk| chunk > 3), None);
}

#[test]
fn a_new_peak_starts_at_what_is_held() {
    let mut cache = cached(100, &[]);
    cache.charge(Fit::exact(40));
    cache.charge(Fit::exact(30));
    cache.refund(40);
    assert_eq!(cache.held_bytes_peak(), 70);
    cache.reset_peak();
    assert_eq!(cache.held_bytes_peak(), 30);
    cache.charge(Fit::exact(20));
    assert_eq!(cache.held_bytes_peak(), 50);
}

#[test]
fn by_need_a_new_chunk_gives_back_what_the_need_does_not_cover() {
    let mut cache = by_need(100_000, &[100, 600, 700]);
    // The need was 1400 and may be exceeded by 390, a part of the cap.
    assert_eq!(cache.make_room(390), Room::After(vec![]));
    assert_eq!(cache.make_room(391), Room::After(vec![(100, 0)]));
    assert_eq!(cache.make_room(2000), Room::After(vec![(600, 1), (700, 2)]), "all there is");
    // A fourteenth of the need is more.
    let mut cache = by_need(100_000, &[14_000, 14_000]);
    assert_eq!(cache.make_room(2000), Room::After(vec![]));
    assert_eq!(cache.make_room(2001), Room::After(vec![(14_000, 0)]));
}

#[test]
fn a_cap_that_was_asked_for_is_used_and_so_is_one_that_is_near() {
    for mut cache in [cached(1000, &[40, 36]), by_need(90, &[40, 36])] {
        let room_bytes = cache.limit_bytes() - 76;
        assert_eq!(cache.make_room(room_bytes), Room::After(vec![]));
        assert_eq!(cache.make_room(room_bytes + 1), Room::After(vec![(40, 0)]));
    }
}

#[test]
fn the_smallest_larger_chunk_serves_after_the_first_step() {
    let mut cache = by_need(100_000, &[1000, 9000]);
    assert_eq!(cache.best_fit(600), Fit::exact(600), "in the first step");
    cache.end_step();
    assert_eq!(cache.best_fit(1000), Fit::exact(1000));
    assert_eq!(cache.best_fit(100), Fit { wanted_bytes: 100, chunk_bytes: 1000 });
    assert_eq!(cache.best_fit(1001), Fit::exact(1001), "7999 of 10,000 would be slack");
    let fit = cache.best_fit(600);
    assert_eq!(cache.serve(fit, |_| true), Some(0));
    assert_eq!((cache.slack_bytes(), cache.cached_bytes()), (400, 9000));
    cache.put(fit, 0);
    assert_eq!((cache.slack_bytes(), cache.cached_bytes()), (0, 10_000));
}

#[test]
fn a_larger_chunk_serves_only_within_what_is_held_by_need() {
    let mut cache = by_need(100_000, &[13_000, 5000]);
    cache.end_step();
    assert_eq!(cache.best_fit(11_000).chunk_bytes, 13_000);
    cache.charge(Fit::exact(5000));
    cache.charge(Fit::exact(1285));
    assert_eq!(cache.best_fit(11_000).chunk_bytes, 13_000, "a fourteenth more in use than before");
    cache.charge(Fit::exact(1));
    assert_eq!(cache.best_fit(11_000), Fit::exact(11_000));
}

#[test]
fn under_a_cap_that_was_asked_for_a_larger_chunk_serves_while_nothing_leaves() {
    let mut cache = cached(20_000, &[13_000, 5000]);
    cache.end_step();
    assert_eq!(cache.best_fit(11_000), Fit::exact(11_000));
    cache.let_nothing_leave(true);
    assert_eq!(cache.best_fit(11_000).chunk_bytes, 13_000);
    assert_eq!(cache.best_fit(10_999), Fit::exact(10_999), "18,000 must fit beside the slack");
    cache.let_nothing_leave(false);
    assert_eq!(cache.best_fit(11_000), Fit::exact(11_000));
}

#[test]
fn a_step_larger_than_all_before_finds_room_until_the_cap_is_near() {
    // Of 20,000 the last fifth is near. Before, 9000 were the most that was ever needed.
    let mut cache = cached(20_000, &[9000]);
    cache.let_nothing_leave(true);
    cache.end_step();
    let fit = cache.best_fit(5000);
    assert_eq!(fit.chunk_bytes, 9000, "4000 beside 16,000 are within the cap");
    assert_eq!(cache.best_fit(4999), Fit::exact(4999));
    cache.serve(fit, |_| true).expect("it is cached");
    cache.charge(Fit::exact(11_000));
    assert_eq!((cache.held_bytes(), cache.slack_bytes()), (20_000, 4000));
}

#[test]
fn what_is_idle_is_not_what_a_step_needed() {
    let mut cache = cached(20_000, &[5000]);
    cache.let_nothing_leave(true);
    // A layout, of which a block takes a part.
    cache.hold(15_000);
    cache.put_idle(15_000);
    cache.use_idle(6000);
    cache.put_idle(6000);
    cache.end_step();
    cache.take_idle(15_000);
    cache.refund(15_000);
    assert_eq!(cache.best_fit(2000).chunk_bytes, 5000, "half of 6000 may be slack");
    assert_eq!(cache.best_fit(1999), Fit::exact(1999));
}

proptest! {
    /// While nothing leaves and the cap is not near, whatever steps allocate and free.
    #[test]
    fn slack_never_takes_the_room_of_a_block(
        calls in prop::collection::vec((1_u64..2000, any::<bool>()), 200..600),
    ) {
        let mut cache = ChunkCache::new(10_000);
        cache.let_nothing_leave(true);
        let (mut blocks, mut larger): (Vec<Fit>, u64) = (Vec::new(), 0);
        for (number, (size_bytes, grows)) in calls.into_iter().enumerate() {
            let used_bytes: u64 = blocks.iter().map(|fit| fit.wanted_bytes).sum();
            if used_bytes + size_bytes <= near_bytes(10_000) && (grows || blocks.is_empty()) {
                let (fit, _) = allocate(&mut cache, size_bytes);
                larger += u64::from(fit.chunk_bytes > size_bytes);
                blocks.push(fit);
            } else {
                let fit = blocks.swap_remove(number % blocks.len());
                cache.put(fit, ());
            }
            if number % 50 == 0 {
                cache.end_step();
            }
        }
        prop_assert!(larger > 0, "no larger chunk served");
    }
}

#[test]
fn slack_leaves_room_for_what_steps_need() {
    // Half of the need, or what the cap leaves beside it; none where the cap is near.
    for (limit_bytes, slack_bytes) in [(100_000, 9000), (24_000, 6000), (20_000, 0)] {
        let mut cache = by_need(limit_bytes, &[13_000, 5000]);
        cache.end_step();
        take(&mut cache, 5000).expect("it is cached");
        let smallest_bytes = 13_000 - slack_bytes;
        assert_eq!(cache.best_fit(smallest_bytes).chunk_bytes, 13_000, "cap {limit_bytes}");
        assert_eq!(cache.best_fit(smallest_bytes - 1), Fit::exact(smallest_bytes - 1));
    }
}

#[test]
fn what_nobody_wanted_for_eight_steps_goes() {
    let mut cache = cached(100, &[10, 20]);
    for _ in 0..8 {
        assert_eq!(cache.end_step(), vec![]);
        let chunk = take(&mut cache, 20).expect("it is cached");
        cache.put(Fit::exact(20), chunk);
    }
    assert_eq!(cache.end_step(), vec![(10, 0)], "cached before nine steps ended");
    assert_eq!((cache.held_bytes(), cache.cached_bytes()), (20, 20));
}

#[test]
fn a_large_step_is_remembered_for_sixty_four() {
    let mut cache = by_need(1_000_000, &[60_000, 60_000]);
    for step in 1..=65 {
        cache.end_step();
        let chunk = cache.serve(Fit::exact(60_000), |_| true).expect("it is cached");
        cache.put(Fit::exact(60_000), chunk);
        // The other one has gone by then.
        if step > 9 {
            let forgotten =
                matches!(cache.make_room(65_001), Room::After(gone) if !gone.is_empty());
            assert_eq!(forgotten, step > 64, "step {step}");
        }
    }
}

#[test]
fn draining_forgets_what_steps_needed() {
    let mut cache = by_need(100_000, &[1000]);
    cache.end_step();
    assert_eq!(cache.drain(), vec![(1000, 0)]);
    cache.charge(Fit::exact(1000));
    cache.put(Fit::exact(1000), 1);
    assert_eq!(cache.best_fit(600), Fit::exact(600), "as in a first step");
}

/// What steps of three sizes hold at most, of 60,000 bytes that they need, and chunks made late.
fn held_and_made(sizes: impl Fn(u64) -> [u64; 3]) -> (u64, u64) {
    let mut cache = ChunkCache::new(1_000_000);
    cache.hold_by_need();
    let mut made_late = 0;
    for step in 0..40 {
        for size_bytes in sizes(step) {
            let blocks: Vec<(Fit, u64)> =
                (0..50).map(|_| allocate(&mut cache, size_bytes)).collect();
            made_late +=
                if step > 20 { blocks.iter().map(|(_, made)| made).sum::<u64>() } else { 0 };
            blocks.into_iter().for_each(|(fit, _)| cache.put(fit, ()));
        }
        cache.end_step();
    }
    (cache.held_bytes_peak(), made_late)
}

#[test]
fn more_is_held_where_steps_differ() {
    let (alike, made) = held_and_made(|_| [900, 1000, 1200]);
    assert!(alike <= 60_000 * 15 / 14, "{alike}");
    assert_eq!(made, 0);
    let (varied, _) = held_and_made(|step| [100 + 97 * step % 300, 1000, 1200 - step % 7]);
    assert!(varied > 60_000 * 8 / 7 && varied <= 60_000 * 11 / 7, "{varied}");
}
