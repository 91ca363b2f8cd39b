//! Budgets as people write them, and choices against all choices there are.

use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

#[test]
fn budgets_parse_as_people_write_them() {
    let check = |text: &str, stage: usize, stages: usize, expect: Option<u64>| {
        let budget = VirtualBudget::parse(text, stage, stages).expect(text);
        assert_eq!(budget.limit_bytes(), expect, "{text}");
    };
    check("all", 0, 1, None);
    check("all", 3, 4, None);
    check("2.0", 0, 1, Some(2 * GIB));
    check("2.0", 7, 8, Some(2 * GIB));
    check(" 0.5\n", 0, 1, Some(GIB / 2));
    check("0", 0, 1, Some(0));
    for (stage, gib) in [6, 5, 4, 3].into_iter().enumerate() {
        check("6 5 4 3", stage, 4, Some(gib * GIB));
    }
    check("all 2", 0, 2, None);
    check("all 2", 1, 2, Some(2 * GIB));
}

#[test]
fn bad_budgets_say_what_was_given_and_what_is_expected() {
    let check = |text: &str, stage: usize, stages: usize, expect: &str| {
        let error = VirtualBudget::parse(text, stage, stages).expect_err(text);
        assert_eq!(error.to_string(), expect);
    };
    let count = "give 1 for all stages or 2, one for each pipeline stage";
    check("6 5 4 3", 0, 2, &format!("the budget '6 5 4 3' has 4 values: {count}"));
    check("", 0, 2, &format!("the budget '' has 0 values: {count}"));
    let fix = "give a number of GiB that is not negative, or 'all'";
    check("two", 0, 1, &format!("the budget 'two' is not a number: {fix}"));
    check("1,5", 0, 1, &format!("the budget '1,5' is not a number: {fix}"));
    check("nan", 0, 1, &format!("the budget 'nan' is not a number: {fix}"));
    check("-1", 0, 1, &format!("the budget '-1' is negative: {fix}"));
    check("inf", 0, 1, &format!("the budget 'inf' is too large: {fix}"));
    check("1e30", 0, 1, &format!("the budget '1e30' is too large: {fix}"));
    // A bad value of another stage would only be found by that stage's process.
    check("2 -3", 0, 2, &format!("the budget '-3' is negative: {fix}"));
    check("2", 1, 1, "pipeline stage 1 is out of range: there are 1, counted from 0");
    check("2", 0, 0, "pipeline stage 0 is out of range: there are 0, counted from 0");
}

#[test]
fn what_is_taken_is_credited_when_given_back() {
    let mut budget = VirtualBudget::new(Some(100));
    assert!(budget.take(60));
    assert!(!budget.take(41), "never beyond the budget");
    assert!(budget.take(40));
    assert_eq!(budget.remaining_bytes(), Some(0));
    budget.give_back(60);
    // A checkpoint is loaded: what is made anew costs what it cost before.
    assert!(budget.take(60));
    assert_eq!(budget.taken_bytes(), 100);
    let mut unlimited = VirtualBudget::new(None);
    assert!(unlimited.take(u64::MAX));
    assert!(!unlimited.take(1), "not more than can be counted");
}

fn chosen_bytes(budget: &VirtualBudget, sizes: &[u64]) -> u64 {
    let chosen = budget.choose(sizes);
    assert_eq!(chosen.len(), sizes.len());
    sizes.iter().zip(chosen).map(|(&size, chosen)| if chosen { size } else { 0 }).sum()
}

#[test]
fn a_choice_fills_the_budget() {
    let check = |limit: u64, sizes: &[u64], expect: &[bool]| {
        let mut budget = VirtualBudget::new(Some(limit + 7));
        assert!(budget.take(7), "what is taken already does not count");
        assert_eq!(budget.choose(sizes), expect, "{limit} {sizes:?}");
    };
    check(0, &[1, 2], &[false, false]);
    check(10, &[], &[]);
    check(10, &[11], &[false]);
    check(10, &[0, 10], &[false, true]);
    // First come first served, or largest first, would waste 1.
    check(10, &[6, 3, 5, 5], &[false, false, true, true]);
    check(10, &[7, 7, 7], &[true, false, false]);
    // Fewer, larger tensors where both come equally near.
    check(8, &[4, 4, 8], &[false, false, true]);
    let all = VirtualBudget::new(None).choose(&[u64::MAX, 5, 0]);
    assert_eq!(all, [true, true, false]);
    assert_eq!(VirtualBudget::new(Some(u64::MAX)).choose(&[u64::MAX, u64::MAX]), [true, false]);
}

#[test]
fn the_moments_of_a_large_model_fill_a_budget_to_the_byte() {
    // Both moments of 96 layers of a transformer, in f32, and its embeddings.
    let width = 8192u64;
    let layer =
        [3 * width * width, width * width, 4 * width * width, 4 * width * width, width, width];
    let mut sizes = vec![50_257 * width * 4; 2];
    for _ in 0..96 {
        sizes.extend(layer.iter().flat_map(|&numbers| [numbers * 4; 2]));
    }
    for gib in [1, 2, 7, 30, 65, 100] {
        let sum = chosen_bytes(&VirtualBudget::new(Some(gib * GIB)), &sizes);
        // All sizes are multiples of 32 KiB, and enough of them are that small.
        assert_eq!(sum, gib * GIB, "{gib} GiB");
    }
}

#[test]
fn many_unlike_sizes_are_chosen_in_bounded_room_and_nearly_fill_the_budget() {
    // 5000 sizes without any order among them.
    let mut state = 1u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        1 + (state >> 33) % (64 << 20)
    };
    let sizes: Vec<u64> = (0..5000).map(|_| next()).collect();
    let total: u64 = sizes.iter().sum();
    for limit in [total / 3, total / 2, total - 1] {
        let sum = chosen_bytes(&VirtualBudget::new(Some(limit)), &sizes);
        assert!(sum <= limit);
        assert!(limit - sum < limit / 1_000_000, "{} bytes of {limit} are wasted", limit - sum);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_choice_is_nearer(
        sizes in prop::collection::vec(prop_oneof![0u64..40, Just(8u64), 1000u64..5000], 0..12),
        limit in 0u64..9000,
    ) {
        let budget = VirtualBudget::new(Some(limit));
        let best = (0u32..1 << sizes.len())
            .map(|mask| (0..sizes.len()).filter(|i| mask >> i & 1 == 1).map(|i| sizes[i]).sum())
            .filter(|&sum: &u64| sum <= limit)
            .max();
        prop_assert_eq!(Some(chosen_bytes(&budget, &sizes)), best);
    }

    #[test]
    fn nothing_that_is_left_out_would_fit(
        sizes in prop::collection::vec(1u64..1 << 40, 0..200),
        limit in 0u64..1 << 44,
    ) {
        let budget = VirtualBudget::new(Some(limit));
        let chosen = budget.choose(&sizes);
        prop_assert_eq!(&budget.choose(&sizes), &chosen, "the same choice each time");
        let sum = chosen_bytes(&budget, &sizes);
        prop_assert!(sum <= limit);
        let out = sizes.iter().zip(&chosen).filter(|(_, chosen)| !**chosen).map(|(&size, _)| size);
        prop_assert!(out.min().is_none_or(|size| size > limit - sum));
    }
}
