//! Holds the packing of layouts to problems of others: `packings FOLDER` packs each file of a
//! folder and prints how high it comes, how many items are in pieces, and in what time.
//!
//! A file has a header, a row `id,lower,upper,size` for each item, and in its name the height that
//! is to be reached, as in `A.1048576.csv`. From `lower` up to `upper` the item is there.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use adaptive::{Item, Packing, pack};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder] = &arguments[..] else {
        eprintln!("usage: packings FOLDER");
        return ExitCode::from(2);
    };
    match pack_all(Path::new(folder)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Whether all of a folder are as low as they are to be.
fn pack_all(folder: &Path) -> Result<bool, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{folder:?}: {error}"))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "csv"));
    files.sort();
    println!(
        "{:<12}{:>6}{:>12}{:>12}{:>12}{:>10}{:>9}",
        "file", "items", "need", "wanted", "height", "in pieces", "s"
    );
    let (mut count, mut all_s) = (0, 0.0);
    for file in &files {
        let (name, wanted_bytes) = name_and_height(file)
            .ok_or_else(|| format!("{file:?}: the name has no height, as NAME.HEIGHT.csv"))?;
        let items = read(file)?;
        #[allow(clippy::disallowed_methods)] // How long it takes is what is to be shown.
        let begun = Instant::now();
        let packing = pack(&items, wanted_bytes);
        let s = begun.elapsed().as_secs_f64();
        let (need, height) = (packing.need_bytes, packing.height_bytes);
        assert!(are_apart(&items, &packing), "{file:?}: items share bytes");
        let cut = packing.spots.iter().filter(|spots| spots.len() > 1).count();
        let count_of = items.len();
        println!(
            "{name:<12}{count_of:>6}{need:>12}{wanted_bytes:>12}{height:>12}{cut:>10}{s:>9.3}"
        );
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

/// Whether items have all their bytes, no two that meet share any, and all end at the height or
/// below.
fn are_apart(items: &[Item], packing: &Packing) -> bool {
    let meet = |one: &Item, other: &Item| {
        let touches = |a: &(u32, u32)| other.stays.iter().any(|b| a.0 < b.1 && b.0 < a.1);
        one.stays.iter().any(touches)
    };
    (0..items.len()).all(|one| {
        let own = &packing.spots[one];
        let others = (0..one).filter(|&other| meet(&items[one], &items[other]));
        let others: Vec<_> = others.flat_map(|other| &packing.spots[other]).collect();
        let is_well = own.iter().enumerate().all(|(at, spot)| {
            let mut all = own[..at].iter().chain(others.iter().copied());
            spot.end_bytes() <= packing.height_bytes && all.all(|it| spot.is_apart_from(*it))
        });
        is_well && own.iter().map(|spot| spot.size_bytes).sum::<u64>() == items[one].size_bytes
    })
}
