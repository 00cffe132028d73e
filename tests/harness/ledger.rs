//! What a load wrote and what it was told: the evidence that a check compares a cluster with.
//!
//! Each write ends in one of two states. *Acknowledged*: it must be there, once. *Unknown* (an error, or no answer): it
//! may be there once, or not at all. Anything else that is found was invented.
//!
//! ```text
//!   row        w003/000017          a:v and b:v hold the same bytes, derived from the key: both or none
//!   list       list/003  a:tokens   "0,1,2,…" appended one by one: each token at most once, acknowledged ones exactly once
//!   counter    count/003 a:n        increments by one: between acknowledged and acknowledged + unknown
//! ```

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::api::ReadRow;

/// What became of a write, as far as its sender knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The cluster said yes.
    Acknowledged,
    /// The cluster said nothing, or that it does not know.
    Unknown,
}

/// One writer's page of the ledger. Each writer has its own rows, list and counter, and sends one write at a time.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Which writer.
    pub writer: usize,
    /// Fates of the rows, by number.
    pub rows: BTreeMap<u64, Fate>,
    /// Fates of the appended tokens.
    pub tokens: BTreeMap<u64, Fate>,
    /// Increments acknowledged.
    pub counted: u64,
    /// Increments with an unknown fate.
    pub perhaps_counted: u64,
    /// The next number.
    pub next: u64,
}

/// What the bytes of a row must be.
pub fn row_value(writer: usize, number: u64) -> Bytes {
    let seed = format!("{writer}:{number};");
    seed.bytes().cycle().take(200 + usize::try_from(number % 7).unwrap_or(0)).collect()
}

/// The key of a writer's row.
pub fn row_key(writer: usize, number: u64) -> String {
    format!("w{writer:03}/{number:08}")
}

/// The key of a writer's list.
pub fn list_key(writer: usize) -> String {
    format!("list/{writer:03}")
}

/// The key of a writer's counter.
pub fn counter_key(writer: usize) -> String {
    format!("count/{writer:03}")
}

impl Page {
    /// An empty page.
    pub fn new(writer: usize) -> Self {
        Self { writer, ..Self::default() }
    }

    /// Writes that were acknowledged.
    pub fn acknowledged(&self) -> u64 {
        let fates = self.rows.values().chain(self.tokens.values());
        self.counted + u64::try_from(fates.filter(|fate| **fate == Fate::Acknowledged).count()).unwrap_or(0)
    }

    /// Compares the rows found with the page; each difference in words.
    pub fn check_rows(&self, found: &[ReadRow]) -> Vec<String> {
        let mut wrong = Vec::new();
        let found: BTreeMap<&[u8], &ReadRow> = found.iter().map(|row| (row.key.as_ref(), row)).collect();
        for (number, fate) in &self.rows {
            let key = row_key(self.writer, *number);
            let wanted = row_value(self.writer, *number);
            match (found.get(key.as_bytes()), fate) {
                (None, Fate::Acknowledged) => wrong.push(format!("lost: row {key} was acknowledged")),
                (None, Fate::Unknown) => {}
                (Some(row), _) => {
                    let (a, b) = (row.value("a", b"v"), row.value("b", b"v"));
                    if a != Some(&wanted) || b != Some(&wanted) || row.cells.len() != 2 {
                        wrong.push(format!("half: row {key} has a={a:?} b={b:?} in {} cells", row.cells.len()));
                    }
                }
            }
        }
        let own = |key: &[u8]| {
            let number = std::str::from_utf8(key).ok()?.rsplit('/').next()?.parse::<u64>().ok()?;
            self.rows.contains_key(&number).then_some(())
        };
        wrong.extend(found.keys().filter(|key| own(key).is_none()).map(|key| format!("invented: row {key:?}")));
        wrong
    }

    /// Compares the list found with the page.
    pub fn check_list(&self, found: Option<&ReadRow>) -> Vec<String> {
        let key = list_key(self.writer);
        let text =
            found.and_then(|row| row.value("a", b"tokens")).map(|value| String::from_utf8_lossy(value).into_owned());
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        let mut wrong = Vec::new();
        for token in text.iter().flat_map(|text| text.split(',')).filter(|token| !token.is_empty()) {
            match token.parse::<u64>() {
                Ok(number) if self.tokens.contains_key(&number) => *counts.entry(number).or_default() += 1,
                _ => wrong.push(format!("invented: {key} holds {token:?}")),
            }
        }
        for (number, fate) in &self.tokens {
            match (counts.get(number).copied().unwrap_or(0), fate) {
                (0, Fate::Acknowledged) => wrong.push(format!("lost: {key} lacks token {number}")),
                (2.., _) => wrong.push(format!("doubled: {key} has token {number} more than once")),
                _ => {}
            }
        }
        wrong
    }

    /// Compares the counter found with the page.
    pub fn check_counter(&self, found: Option<&ReadRow>) -> Vec<String> {
        let key = counter_key(self.writer);
        let value = match found.and_then(|row| row.value("a", b"n")) {
            None => 0,
            Some(bytes) => match <[u8; 8]>::try_from(bytes.as_ref()) {
                Ok(bytes) => u64::from_be_bytes(bytes),
                Err(_) => return vec![format!("half: {key} holds {} bytes", bytes.len())],
            },
        };
        let most = self.counted + self.perhaps_counted;
        match value {
            value if value < self.counted => {
                vec![format!("lost: {key} is {value}, {} were acknowledged", self.counted)]
            }
            value if value > most => vec![format!("doubled: {key} is {value}, at most {most} were sent")],
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, cells: &[(&str, &str, Bytes)]) -> ReadRow {
        let cell = |(family, qualifier, value): &(&str, &str, Bytes)| {
            ((*family).to_owned(), Bytes::copy_from_slice(qualifier.as_bytes()), value.clone())
        };
        ReadRow { key: Bytes::copy_from_slice(key.as_bytes()), cells: cells.iter().map(cell).collect() }
    }

    fn page() -> Page {
        let fates = BTreeMap::from([(0, Fate::Acknowledged), (1, Fate::Unknown)]);
        Page { rows: fates.clone(), tokens: fates, counted: 3, perhaps_counted: 1, ..Page::new(7) }
    }

    #[test]
    fn a_lost_a_half_and_an_invented_row_are_told_apart() {
        let whole = |n| row(&row_key(7, n), &[("a", "v", row_value(7, n)), ("b", "v", row_value(7, n))]);
        assert_eq!(page().check_rows(&[whole(0)]), Vec::<String>::new());
        assert!(page().check_rows(&[])[0].starts_with("lost"));
        assert!(page().check_rows(&[row(&row_key(7, 0), &[("a", "v", row_value(7, 0))])])[0].starts_with("half"));
        assert!(page().check_rows(&[whole(0), whole(2)])[0].starts_with("invented"));
    }

    #[test]
    fn a_lost_and_a_doubled_token_are_found() {
        let list = |text: &'static str| row("list/007", &[("a", "tokens", Bytes::from_static(text.as_bytes()))]);
        assert_eq!(page().check_list(Some(&list("0,1,"))), Vec::<String>::new());
        assert!(page().check_list(None)[0].starts_with("lost"));
        assert!(page().check_list(Some(&list("0,0,")))[0].starts_with("doubled"));
        assert!(page().check_list(Some(&list("0,9,")))[0].starts_with("invented"));
    }

    #[test]
    fn a_counter_lies_between_what_was_acknowledged_and_what_was_sent() {
        let counter = |n: u64| row("count/007", &[("a", "n", Bytes::copy_from_slice(&n.to_be_bytes()))]);
        assert!(page().check_counter(Some(&counter(2)))[0].starts_with("lost"));
        assert!(
            page().check_counter(Some(&counter(3))).is_empty() && page().check_counter(Some(&counter(4))).is_empty()
        );
        assert!(page().check_counter(Some(&counter(5)))[0].starts_with("doubled"));
    }
}
