//! Benchmark of compression: what pages with several versions cost by each compression and size of a block, how fast they are written and
//! read, and how long the read of one page takes.
//!
//! `cargo run --release -p ebla-storage --example pages_bench -- PAGES [VERSIONS [FOLDER]]`: PAGES is `PAGES/CRAWL/HOST/PATH.html`, one folder
//! for each crawl in the order of their names. A page with fewer than VERSIONS versions gets edited ones ([`edited`]); without VERSIONS
//! none is edited. FOLDER is for the stores; it is removed.
//!
//! Rows and versions have the order that they have in a Webtable: by host with its parts reversed, then path, then newest version first.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ebla_model::codec;
use ebla_model::id::{FamilyId, TableId};
use ebla_model::key::RowKey;
use ebla_model::stored_row::stored_row;
use ebla_model::time::Micros;
use ebla_storage::store::{Batch, CellFamily, GroupStore, ScanPlan, SharedResources, StoreOptions, WantedFamilies};

type BenchResult<T> = Result<T, Box<dyn Error>>;

/// Versions by row, oldest first.
type Pages = BTreeMap<String, Vec<Vec<u8>>>;

const TABLE: TableId = TableId::new(7);
const CONTENTS: FamilyId = FamilyId::new(1);
const COMPRESSIONS: [&str; 6] = ["none", "lz4", "zstd:1", "zstd:3", "zstd:9", "two-pass"];
const BLOCKS: [&str; 5] = ["16k", "64k", "256k", "512k", "1024k"];
/// Bytes that are written between two flushes.
const FLUSH_BYTES: usize = 16 << 20;
/// Pages that are read one by one.
const PAGE_READS: usize = 200;
/// Repetitions of the scan; the fastest counts.
const SCANS: usize = 3;

fn main() -> BenchResult<()> {
    let mut arguments = std::env::args().skip(1).map(PathBuf::from);
    let folder = arguments.next().ok_or("usage: pages_bench PAGES [VERSIONS [FOLDER]]")?;
    let versions = arguments.next().map_or(Ok(0), |text| text.to_string_lossy().parse())?;
    let dir = arguments.next().unwrap_or_else(|| std::env::temp_dir().join("ebla-pages-bench"));
    let mut pages = read(&folder)?;
    describe(&pages);
    if pages.is_empty() {
        return Err("there are no pages".into());
    }
    let found: usize = pages.values().map(Vec::len).sum();
    pages.values_mut().for_each(|page| add_edited(page, versions));
    println!("with {} edited versions: {} B", pages.values().map(Vec::len).sum::<usize>() - found, bytes(&pages));
    println!(
        "{:<10}{:>7}{:>8}{:>14}{:>14}{:>20}",
        "", "block", "ratio", "encode MB/s", "decode MB/s", "read of a page, us"
    );
    for compression in COMPRESSIONS {
        for block in BLOCKS {
            let _absent_is_fine = std::fs::remove_dir_all(&dir);
            std::fs::create_dir_all(&dir)?;
            measure(&dir, &pages, compression, block)?;
        }
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// The pages of all crawls.
fn read(folder: &Path) -> BenchResult<Pages> {
    let mut pages = Pages::new();
    for crawl in entries(folder)? {
        let mut open = vec![crawl.clone()];
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(entries(&path)?);
            } else if path.extension().is_some_and(|extension| extension == "html") {
                let address = path.strip_prefix(&crawl)?.to_string_lossy().into_owned();
                let (host, page) = address.split_once('/').ok_or("expected PAGES/CRAWL/HOST/PATH.html")?;
                let host: Vec<&str> = host.split('.').rev().collect();
                pages.entry(format!("{}/{page}", host.join("."))).or_default().push(std::fs::read(&path)?);
            }
        }
    }
    Ok(pages)
}

fn entries(folder: &Path) -> BenchResult<Vec<PathBuf>> {
    let mut paths = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<BenchResult<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn describe(pages: &Pages) {
    let versions: usize = pages.values().map(Vec::len).sum();
    let pairs = pages.values().flat_map(|versions| versions.windows(2));
    let unchanged = pairs.filter(|pair| pair.first() == pair.last()).count();
    println!(
        "{} pages, {versions} versions, {unchanged} of them equal to the one before, {} B",
        pages.len(),
        bytes(pages)
    );
}

/// Adds edited versions of a page until it has the wanted number of versions.
fn add_edited(page: &mut Vec<Vec<u8>>, versions: usize) {
    while page.len() < versions {
        let Some(last) = page.last() else { return };
        let next = edited(last, page.len());
        page.push(next);
    }
}

/// A page as an editor could leave it: of every 300 lines one is removed, one gets a line behind it that is in no other version, and in three
/// the digits change, as those of dates and releases do.
fn edited(page: &[u8], version: usize) -> Vec<u8> {
    let mut edited = Vec::with_capacity(page.len());
    for (number, line) in page.split_inclusive(|byte| *byte == b'\n').enumerate() {
        match (number * 31 + version * 7919) % 300 {
            0 => {}
            1 => {
                edited.extend(line);
                edited.extend(
                    format!("<p>Version {version} explains line {number} with {} words more.</p>\n", number % 97)
                        .bytes(),
                );
            }
            2..=4 => edited.extend(line.iter().map(|byte| match byte {
                b'0'..=b'8' => byte + 1,
                other => *other,
            })),
            _ => edited.extend(line),
        }
    }
    edited
}

fn bytes(pages: &Pages) -> usize {
    pages.values().flatten().map(Vec::len).sum()
}

fn key(row: &str, version: usize) -> Vec<u8> {
    let row = stored_row(TABLE, &RowKey::copy_from_slice(row.as_bytes()));
    let at = Micros::new(i64::try_from(version).unwrap_or(i64::MAX));
    codec::encode_parts(row.as_bytes(), CONTENTS, b"", at)
}

/// Writes all pages to a store, a file at a time, and reads them.
fn measure(dir: &Path, pages: &Pages, compression: &str, block: &str) -> BenchResult<()> {
    let buffers = StoreOptions { write_buffer_bytes: 1 << 30, memtable_bytes: 2 << 30, ..StoreOptions::up() };
    let shared: Arc<SharedResources> = SharedResources::new(buffers)?;
    let store = GroupStore::create(&dir.join("store"), &shared)?;
    let options = format!("compression={compression};block={block}").parse()?;
    let families: WantedFamilies = [(CONTENTS, CellFamily { group: 1, options })].into();
    store.place_tables(BTreeMap::from([(TABLE, families)]))?;

    let (mut encoded, mut unflushed) = (0.0, 0);
    let flush = || -> BenchResult<f64> {
        let started = Instant::now();
        store.flush()?;
        Ok(started.elapsed().as_secs_f64())
    };
    for (row, versions) in pages {
        let mut batch = Batch::new();
        for (version, contents) in versions.iter().enumerate() {
            batch.put(key(row, version), contents.clone());
            unflushed += contents.len();
        }
        store.write(&batch)?;
        if unflushed >= FLUSH_BYTES {
            encoded += flush()?;
            unflushed = 0;
        }
    }
    encoded += flush()?;
    store.compact()?;
    let size = store.size_bytes()?;

    let mut decoded = f64::INFINITY;
    for _scan in 0..SCANS {
        let started = Instant::now();
        let read = scan(&store, b"", None)?;
        decoded = decoded.min(started.elapsed().as_secs_f64());
        if read != bytes(pages) {
            return Err(format!("{read} bytes were read").into());
        }
    }
    let started = Instant::now();
    let rows: Vec<&String> = pages.keys().collect();
    for number in 0..PAGE_READS {
        // Spread over the rows, without an order.
        let Some(row) = rows.get(number * 7919 % rows.len()) else { continue };
        let newest = pages.get(*row).map_or(0, |versions| versions.len() - 1);
        let lower = key(row, newest);
        let upper = [&lower[..], &[0]].concat();
        scan(&store, &lower, Some(&upper))?;
    }
    let page_micros = started.elapsed().as_secs_f64() * 1e6;

    #[expect(clippy::cast_precision_loss, reason = "megabytes")]
    let (ratio, written, page_micros) =
        (bytes(pages) as f64 / size as f64, bytes(pages) as f64 / 1e6, page_micros / PAGE_READS as f64);
    println!(
        "{compression:<10}{block:>7}{ratio:>8.2}{:>14.0}{:>14.0}{page_micros:>20.0}",
        written / encoded,
        written / decoded
    );
    Ok(())
}

/// Reads cells without the block cache; returns the bytes of their values.
fn scan(store: &GroupStore, lower: &[u8], upper: Option<&[u8]>) -> BenchResult<usize> {
    let view = store.view();
    let mut scan = view.scan(&ScanPlan::new(lower, upper).without_filling_cache())?;
    let mut read = 0;
    while let Some((_key, value)) = scan.entry() {
        read += value.len();
        scan.step()?;
    }
    Ok(read)
}
