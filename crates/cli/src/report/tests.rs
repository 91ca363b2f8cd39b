//! The page as a whole: well formed, self-contained, honest about hostile and missing input.

use super::files::OutFolder;
use super::run::{Decision, Mode, Run, spread_over_ops};
use super::{html, json, sample, table, timeline};

/// Elements that have no end tag in HTML.
const VOID: [&str; 5] = ["meta", "br", "input", "link", "hr"];

/// Checks that all tags balance and returns the text between them and all attribute values.
/// A reader of its own: it shares nothing with what wrote the page.
fn check_well_formed(page: &str) -> String {
    let mut open: Vec<String> = Vec::new();
    let mut rest = page.strip_prefix("<!doctype html>").expect("a doctype comes first");
    let mut text = String::new();
    while let Some(start) = rest.find('<') {
        text.push_str(&rest[..start]);
        rest = &rest[start + 1..];
        let end = tag_end(rest);
        let (tag, after) = (&rest[..end], &rest[end + 1..]);
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "unbalanced near {:.80}", rest);
            continue;
        }
        let name: String = tag.chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
        assert!(!name.is_empty(), "a stray '<' before {tag:.40}");
        if tag.ends_with('/') || VOID.contains(&name.as_str()) {
            continue;
        }
        if name == "script" || name == "style" {
            let close = format!("</{name}>");
            let end = rest.find(&close).expect("raw text ends");
            rest = &rest[end + close.len()..];
            continue;
        }
        open.push(name);
    }
    assert!(open.is_empty(), "left open: {open:?}");
    text.push_str(rest);
    text
}

/// The end of a tag: the first `>` outside quotes.
fn tag_end(rest: &str) -> usize {
    let mut quoted = false;
    for (position, character) in rest.char_indices() {
        match character {
            '"' => quoted = !quoted,
            '<' => panic!("'<' inside a tag: {:.60}", rest),
            '>' if !quoted => return position,
            _ => {}
        }
    }
    panic!("a tag never ends: {:.60}", rest);
}

/// Words of the page that no reader should ever meet.
fn check_no_broken_numbers(text: &str) {
    let is_word = |character: char| character.is_ascii_alphanumeric();
    for word in text.split(|character| !is_word(character)) {
        assert!(!["NaN", "nan", "inf", "infinity", "undefined"].contains(&word), "found {word}");
    }
}

fn check(run: &Run) -> String {
    let page = html::text(run).unwrap();
    check_well_formed(&page);
    check_no_broken_numbers(&page);
    for forbidden in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(forbidden), "the page asks for {forbidden}");
    }
    let timeline = timeline::text(run).unwrap();
    serde_json::from_str::<serde_json::Value>(&timeline).unwrap();
    serde_json::from_str::<serde_json::Value>(&json::text(run).unwrap()).unwrap();
    assert!(table::text(run).lines().count() > 10);
    page
}

#[test]
fn every_kind_of_run_makes_a_sound_page() {
    for run in [sample::swapping(), sample::keeping(), sample::long()] {
        let page = check(&run);
        assert!(page.contains("aria-label") && page.contains("<caption"));
        assert!(page.contains("prefers-color-scheme: dark") && page.contains("@media print"));
    }
    assert!(check(&sample::keeping()).contains("no copies in this step"));
}

#[test]
fn an_empty_run_and_broken_figures_still_make_a_sound_page() {
    let mut run = sample::swapping();
    for step in &mut run.steps {
        step.loss = None;
        step.step_us = f64::NAN;
        step.stall_us = f64::INFINITY;
    }
    run.step_us_uncapped = Some(f64::NAN);
    run.spans[0].start_us = f64::NAN;
    run.memory.planned[0].at_us = f64::INFINITY;
    run.decisions[0].added_us = f64::NAN;
    check(&run);
    run.steps.clear();
    run.spans.clear();
    run.decisions.clear();
    run.memory = super::run::MemoryCurves::default();
    run.peak_uncapped_bytes = Some(0);
    run.peak_device_bytes = 0;
    run.memory_limit_bytes = 0;
    let page = check(&run);
    assert!(page.contains("No step was recorded."));
}

#[test]
fn extremes_of_size_make_a_sound_page() {
    let mut run = sample::long();
    let spans = run.spans.clone();
    run.spans = (0..100)
        .flat_map(|turn| {
            let shift_us = f64::from(turn) * 84_200.0;
            spans.iter().cloned().map(move |mut span| {
                span.start_us += shift_us;
                span.end_us += shift_us;
                span
            })
        })
        .collect();
    assert!(run.spans.len() > 20_000);
    let page = check(&run);
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
    run.steps.truncate(1);
    run.memory.uncapped.truncate(1);
    run.memory.planned.truncate(1);
    run.spans.truncate(1);
    check(&run);
}

#[test]
fn hostile_names_stay_text() {
    let evil = "</script><script>alert('x')</script>\"onload=\"x&<b>";
    let mut run = sample::swapping();
    run.command_line = evil.to_owned();
    run.strategy = evil.to_owned();
    for span in &mut run.spans {
        span.name = evil.to_owned();
    }
    for decision in &mut run.decisions {
        let Decision { block, reason, away, .. } = decision;
        *block = evil.to_owned();
        *reason = evil.to_owned();
        if let Some(away) = away {
            away.from_op = evil.to_owned();
            away.until_op = evil.to_owned();
        }
    }
    let page = check(&run);
    assert!(page.contains("alert("), "the name is shown, as text");
    assert!(!page.contains("<script>alert") && !page.contains("<b>"));
    assert_eq!(page.matches("<script").count(), 1);
    assert_eq!(page.matches("</script>").count(), 1);
}

#[test]
fn the_same_run_gives_the_same_page() {
    assert_eq!(html::text(&sample::swapping()).unwrap(), html::text(&sample::swapping()).unwrap());
}

#[test]
fn the_checks_see_broken_pages() {
    for broken in ["<p><b></p></b>", "<p>", "</p>", "<p a=\"", "a < b"] {
        let page = format!("<!doctype html>{broken}");
        assert!(std::panic::catch_unwind(|| check_well_formed(&page)).is_err(), "{broken}");
    }
    assert!(std::panic::catch_unwind(|| check_no_broken_numbers("x=\"NaN%\"")).is_err());
    check_well_formed("<!doctype html><p a=\"x > y\">a<br>b<path/></p>");
}

#[test]
fn ops_become_times_that_never_go_back() {
    let samples = [(0, 1), (1, 2), (1, 3), (0, 4), (2, 5), (9, 6)];
    let points = spread_over_ops(&samples, &[0.0, 10.0, 20.0], 50.0);
    let times: Vec<f64> = points.iter().map(|point| point.at_us).collect();
    assert_eq!(times, [0.0, 10.0, 15.0, 15.0, 20.0, 50.0]);
    assert!(points.iter().map(|point| point.bytes).eq(1..=6));
}

/// Writes the sample pages as a run would. Set `SMARTSWAP_SAMPLE_DIR` to look at them.
#[test]
fn all_files_are_written_and_read_back() {
    let scratch = tempfile::tempdir().unwrap();
    let root = std::env::var_os("SMARTSWAP_SAMPLE_DIR").map(std::path::PathBuf::from);
    let root = root.unwrap_or_else(|| scratch.path().to_owned());
    let mut short = sample::swapping();
    short.steps.truncate(4);
    short.steps.retain(|step| step.mode != Mode::Stable);
    short.bit_identical = Some(false);
    let runs = [
        ("swapping", sample::swapping()),
        ("keeping", sample::keeping()),
        ("long", sample::long()),
        ("short", short),
    ];
    for (name, run) in runs {
        let folder = OutFolder::prepare(&root.join(name)).unwrap();
        let page = html::text(&run).unwrap();
        let written = folder.write("report.html", page.as_bytes()).unwrap();
        assert_eq!(std::fs::read_to_string(written).unwrap(), page);
        folder.write("timeline.json", timeline::text(&run).unwrap().as_bytes()).unwrap();
    }
}
