//! Names as text: cleaning, joining, splitting and escaping. [`crate::name`] validates names of nodes.
//!
//! ```text
//!   a/b                 relative: looked up from the client's roots
//!   /host:8101/a/b      rooted: the first element is a server, the rest a name there
//! ```
//!
//! These functions accept any text; `.` and `..` have no meaning here.

/// The name with repeated slashes collapsed and a trailing slash removed. `/` and the empty name are unchanged.
pub fn clean(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        if c != '/' || !out.ends_with('/') {
            out.push(c);
        }
    }
    if out.len() > 1 && out.ends_with('/') {
        out.pop();
    }
    out
}

/// The pieces joined with slashes and cleaned. Leading empty pieces are dropped, so they do not make a name rooted.
pub fn join(pieces: &[&str]) -> String {
    let leading = pieces.iter().take_while(|piece| piece.is_empty()).count();
    clean(&pieces.iter().skip(leading).copied().collect::<Vec<_>>().join("/"))
}

/// Whether the name begins with a server's address.
pub fn is_rooted(name: &str) -> bool {
    name.starts_with('/')
}

/// The number of elements; empty ones do not count.
pub fn depth(name: &str) -> usize {
    elements(name).count()
}

/// The elements of the name, without empty ones.
pub fn elements(name: &str) -> impl Iterator<Item = &str> {
    name.split('/').filter(|element| !element.is_empty())
}

/// Splits a rooted name into the address and the name at that server; a relative name has the empty address.
///
/// An address ends at the first slash, with two exceptions: one that begins with `@` (endpoint format) runs through the
/// first `@@` before a slash, and one that begins with `(` (a blessing in front) ends at the first slash after `)@`.
pub fn split_address(name: &str) -> (String, String) {
    let name = clean(name);
    let Some(rest) = name.strip_prefix('/') else { return (String::new(), name) };
    let end = if rest.starts_with('@') {
        rest.find("@@/").map(|at| at + "@@".len())
    } else if rest.starts_with('(') {
        let behind = rest.find(")@").map_or(0, |at| at + ")@".len());
        rest.get(behind..).and_then(|tail| tail.find('/')).map(|at| behind + at)
    } else {
        rest.find('/')
    };
    match end.and_then(|end| rest.split_at_checked(end)) {
        Some((address, tail)) => (address.to_owned(), tail.trim_start_matches('/').to_owned()),
        None => (rest.to_owned(), String::new()),
    }
}

/// The inverse of [`split_address`].
pub fn join_address(address: &str, name: &str) -> String {
    match (address, name) {
        ("", name) => clean(name),
        (address, "") => clean(&format!("/{address}")),
        (address, name) => clean(&format!("/{address}/{name}")),
    }
}

/// The name without the whole-element suffix `suffix`; unchanged if it does not end so.
///
/// A suffix that begins with a slash matches only an identical name, and a rooted name keeps its address: `/a` without
/// `a` is `/a`.
pub fn trim_suffix(name: &str, suffix: &str) -> String {
    let (name, suffix) = (clean(name), clean(suffix));
    if name == suffix {
        return String::new();
    }
    if suffix.is_empty() || suffix.starts_with('/') {
        return name;
    }
    match name.strip_suffix(&suffix).and_then(|head| head.strip_suffix('/')) {
        Some(head) if !head.is_empty() => head.to_owned(),
        _ => name,
    }
}

/// Escapes text as one element: `/` and `%` become `%2F` and `%25`.
pub fn encode_element(text: &str) -> String {
    text.replace('%', "%25").replace('/', "%2F")
}

/// Unescapes an element: each `%` with two hex digits becomes that byte.
///
/// `None` when a `%` is followed by anything else, or when the bytes are not UTF-8.
pub fn decode_element(element: &str) -> Option<String> {
    let mut bytes = element.bytes();
    let mut out = Vec::with_capacity(element.len());
    while let Some(byte) = bytes.next() {
        out.push(if byte == b'%' { hex(bytes.next()?)? << 4 | hex(bytes.next()?)? } else { byte });
    }
    String::from_utf8(out).ok()
}

fn hex(digit: u8) -> Option<u8> {
    u8::try_from(char::from(digit).to_digit(16)?).ok()
}
