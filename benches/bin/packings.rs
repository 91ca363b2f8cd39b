//! Holds the layout search to packing problems of others: `packings FOLDER [EFFORT]` packs each
//! file of a folder and prints how high it comes, and in what time.
//!
//! A file has a header, a row `id,lower,upper,size` for each item, and in its name the height that
//! is to be reached, as in `A.1048576.csv`. From `lower` up to `upper` the item is there.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use adaptive::{Aim, Item, pack};

const EFFORT: u32 = 500;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let asked = match words[..] {
        [folder] => Some((folder, EFFORT)),
        [folder, effort] => effort.parse().ok().map(|effort| (folder, effort)),
        _ => None,
    };
    let Some((folder, effort)) = asked else {
        eprintln!("usage: packings FOLDER [EFFORT]");
        return ExitCode::from(2);
    };
    match pack_all(Path::new(folder), effort) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Whether all of a folder are as low as they are to be.
fn pack_all(folder: &Path, effort: u32) -> Result<bool, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{folder:?}: {error}"))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "csv"));
    files.sort();
    println!(
        "{:<12}{:>6}{:>12}{:>12}{:>12}{:>9}",
        "file", "items", "need", "wanted", "height", "s"
    );
    let (mut count, mut all_s) = (0, 0.0);
    for file in &files {
        let (name, wanted_bytes) = name_and_height(file)
            .ok_or_else(|| format!("{file:?}: the name has no height, as NAME.HEIGHT.csv"))?;
        let items = read(file)?;
        #[allow(clippy::disallowed_methods)] // How long it takes is what is to be shown.
        let begun = Instant::now();
        let packing = pack(&items, Aim { height_bytes: wanted_bytes, effort });
        let s = begun.elapsed().as_secs_f64();
        let (need, height) = (packing.need_bytes, packing.height_bytes);
        assert!(are_apart(&items, &packing.offsets, height), "{file:?}: items share bytes");
        println!("{name:<12}{:>6}{need:>12}{wanted_bytes:>12}{height:>12}{s:>9.2}", items.len());
        count += usize::from(height <= wanted_bytes);
        all_s += s;
    }
    println!("{count} of {} are as low as wanted; all took {all_s:.2} s", files.len());
    Ok(count == files.len())
}

fn name_and_height(file: &Path) -> Option<(&str, u64)> {
    let (name, height) = file.file_stem()?.to_str()?.rsplit_once('.')?;
    Some((name, height.parse().ok()?))
}

fn read(file: &Path) -> Result<Vec<Item>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file:?}: {error}"))?;
    let item = |line: &str| {
        let mut fields = line.split(',').skip(1).map(|field| field.trim().parse::<u64>().ok());
        let [start, end, size_bytes] = [(); 3].map(|()| fields.next().flatten());
        let time = |time: Option<u64>| u32::try_from(time?).ok();
        let stay = (time(start)?, time(end)?);
        Some(Item { size_bytes: size_bytes?, stays: vec![stay] }).filter(|_| stay.0 < stay.1)
    };
    let lines = text.lines().enumerate().skip(1).filter(|(_, line)| !line.is_empty());
    let items = lines.map(|(at, line)| {
        item(line).ok_or_else(|| format!("{file:?}: line {} is no id,lower,upper,size", at + 1))
    });
    items.collect()
}

/// Whether no two that meet share bytes, and all end at the height or below.
fn are_apart(items: &[Item], offsets: &[u64], height_bytes: u64) -> bool {
    let lots = || items.iter().zip(offsets).map(|(item, &at)| (item, at..at + item.size_bytes));
    let meet = |one: &Item, other: &Item| {
        let touches = |a: &(u32, u32)| other.stays.iter().any(|b| a.0 < b.1 && b.0 < a.1);
        one.stays.iter().any(touches)
    };
    lots().enumerate().all(|(rank, (one, lot))| {
        let apart = |other: &std::ops::Range<u64>| lot.end <= other.start || other.end <= lot.start;
        lot.end <= height_bytes
            && lots().skip(rank + 1).all(|(it, other)| apart(&other) || !meet(one, it))
    })
}
