//! Pagination of lists. Names ascend, and a page token is the last name of the previous page, so additions and
//! deletions between two pages neither repeat nor hide other items. Pure.

use std::collections::BTreeMap;

use ebla_model::error::Error;

/// The maximum number of items in a page.
const PAGE_MAX: usize = 1_000;

/// The page that a request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageRequest<'a> {
    /// The prefix of all names in the list.
    pub(crate) prefix: &'a str,
    /// The maximum number of items; 0 leaves it to the server.
    pub(crate) size: i32,
    /// The token of the previous page; empty for the first page.
    pub(crate) token: &'a str,
}

/// The items of a page, and the token of the next one (empty: there is none).
///
/// # Errors
/// `InvalidArgument` when the size is negative, or the token was not given for this list.
pub(crate) fn page<T>(items: BTreeMap<String, T>, request: PageRequest<'_>) -> Result<(Vec<T>, String), Error> {
    let size = usize::try_from(request.size).map_err(|_negative| Error::invalid("page_size must not be negative"))?;
    let size = if size == 0 { PAGE_MAX } else { size.min(PAGE_MAX) };
    let is_own = request.token.len() > request.prefix.len() && request.token.starts_with(request.prefix);
    if !request.token.is_empty() && !is_own {
        return Err(Error::invalid(format!("page_token {:?} was not given for this list", request.token)));
    }
    let mut rest = items.into_iter().filter(|(name, _item)| name.as_str() > request.token).peekable();
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

    fn request(size: i32, token: &str) -> PageRequest<'_> {
        PageRequest { prefix: "p/", size, token }
    }

    #[test]
    fn pages_follow_each_other_without_loss() {
        let mut token = String::new();
        let mut pages = Vec::new();
        loop {
            let (shown, next) = page(items(5), request(2, &token)).unwrap();
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
        assert_eq!(page(items(2), request(2, "")), Ok((vec![0, 1], String::new())));
        assert_eq!(page(items(3), request(2, "")), Ok((vec![0, 1], "p/00001".to_owned())));
        assert_eq!(page(items(0), request(2, "")), Ok((vec![], String::new())));
    }

    #[test]
    fn what_goes_between_two_pages_hides_nothing() {
        let (_first, token) = page(items(4), request(2, "")).unwrap();
        let mut left = items(4);
        left.remove("p/00001");
        assert_eq!(page(left, request(2, &token)), Ok((vec![2, 3], String::new())));
    }

    #[test]
    fn a_page_has_at_most_a_thousand() {
        for (size, shown) in [(0, 1_000), (999, 999), (1_000, 1_000), (1_001, 1_000), (i32::MAX, 1_000)] {
            let (page, next) = page(items(1_001), request(size, "")).unwrap();
            assert_eq!((page.len(), next.is_empty()), (shown, false), "{size}");
        }
    }

    /// All texts of up to three of these pieces.
    fn tokens() -> Vec<String> {
        const PIECES: [&str; 9] = ["", "p", "/", "p/", "0", "p/00001", "\0", "\u{10ffff}", "../"];
        let pairs = PIECES.iter().flat_map(|one| PIECES.iter().map(move |two| format!("{one}{two}")));
        pairs.flat_map(|pair| PIECES.iter().map(move |three| format!("{pair}{three}"))).collect()
    }

    #[test]
    fn any_token_is_refused_or_continues_after_itself() {
        for token in tokens() {
            for size in [i32::MIN, -1, 0, 1, 2, i32::MAX] {
                let Ok((shown, next)) = page(items(5), request(size, &token)) else { continue };
                assert!(token.is_empty() || token.starts_with("p/"), "{token:?}");
                let first = shown.first().map(|number| format!("p/{number:05}"));
                assert!(first.is_none_or(|first| first > token), "{token:?}");
                assert!(next.is_empty() || next > token, "{token:?} is followed by {next:?}: the list would not end");
            }
        }
    }

    #[test]
    fn a_negative_size_and_a_foreign_token_are_refused() {
        for refused in
            [request(-1, ""), request(i32::MIN, ""), request(1, "q/00001"), request(1, "p/"), request(1, "p")]
        {
            assert_eq!(page(items(3), refused).unwrap_err().reason, Reason::InvalidArgument, "{refused:?}");
        }
    }
}
