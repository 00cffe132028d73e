//! Pages of lists. Names ascend, and a token is the last name of the page before, so what comes and goes between two pages
//! neither repeats others nor hides them. Pure.

use std::collections::BTreeMap;

use ebla_model::error::Error;

/// Items in one answer, unless fewer are asked for.
const PAGE_MAX: usize = 1_000;

/// Which page is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// How all names of the list begin.
    pub(crate) prefix: &'a str,
    /// Most items; 0 leaves it to the server.
    pub(crate) size: i32,
    /// What the page before said; empty for the first one.
    pub(crate) token: &'a str,
}

/// The items of a page, and the token of the next one (empty: there is none).
///
/// # Errors
/// `InvalidArgument` when the size is negative, or the token was not given for this list.
pub(crate) fn page<T>(items: BTreeMap<String, T>, asked: Asked<'_>) -> Result<(Vec<T>, String), Error> {
    let size = usize::try_from(asked.size).map_err(|_negative| Error::invalid("page_size must not be negative"))?;
    let size = if size == 0 { PAGE_MAX } else { size.min(PAGE_MAX) };
    let is_own = asked.token.len() > asked.prefix.len() && asked.token.starts_with(asked.prefix);
    if !asked.token.is_empty() && !is_own {
        return Err(Error::invalid(format!("page_token {:?} was not given for this list", asked.token)));
    }
    let mut rest = items.into_iter().filter(|(name, _item)| name.as_str() > asked.token).peekable();
    let (names, shown): (Vec<_>, Vec<_>) = rest.by_ref().take(size).unzip();
    let more = rest.peek().is_some();
    Ok((shown, names.into_iter().next_back().filter(|_name| more).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use ebla_model::error::Reason;

    use super::*;

    fn items(count: usize) -> BTreeMap<String, usize> {
        (0..count).map(|n| (format!("p/{n:05}"), n)).collect()
    }

    fn asked(size: i32, token: &str) -> Asked<'_> {
        Asked { prefix: "p/", size, token }
    }

    #[test]
    fn pages_follow_each_other_without_loss() {
        let mut token = String::new();
        let mut pages = Vec::new();
        loop {
            let (shown, next) = page(items(5), asked(2, &token)).unwrap();
            pages.push(shown);
            token = next;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(pages, [vec![0, 1], vec![2, 3], vec![4]]);
    }

    #[test]
    fn the_last_page_has_no_token() {
        assert_eq!(page(items(2), asked(2, "")), Ok((vec![0, 1], String::new())));
        assert_eq!(page(items(3), asked(2, "")), Ok((vec![0, 1], "p/00001".to_owned())));
        assert_eq!(page(items(0), asked(2, "")), Ok((vec![], String::new())));
    }

    #[test]
    fn what_goes_between_two_pages_hides_nothing() {
        let (_first, token) = page(items(4), asked(2, "")).unwrap();
        let mut left = items(4);
        left.remove("p/00001");
        assert_eq!(page(left, asked(2, &token)), Ok((vec![2, 3], String::new())));
    }

    #[test]
    fn a_page_has_at_most_a_thousand() {
        for (size, shown) in [(0, 1_000), (999, 999), (1_000, 1_000), (1_001, 1_000), (i32::MAX, 1_000)] {
            let (page, next) = page(items(1_001), asked(size, "")).unwrap();
            assert_eq!((page.len(), next.is_empty()), (shown, false), "{size}");
        }
    }

    #[test]
    fn a_negative_size_and_a_foreign_token_are_refused() {
        for refused in [asked(-1, ""), asked(i32::MIN, ""), asked(1, "q/00001"), asked(1, "p/"), asked(1, "p")] {
            assert_eq!(page(items(3), refused).unwrap_err().reason, Reason::InvalidArgument, "{refused:?}");
        }
    }
}
