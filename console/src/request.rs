//! What a page is asked for: the path and the parameters of a request, decoded. Pure.

use ebla_model::error::Error;
use ebla_model::key::RowKey;

use crate::html::Path;

/// The most segments of a path.
const SEGMENTS_MAX: usize = 8;
/// The most parameters of a query or a form.
const PARAMETERS_MAX: usize = 64;

/// A path and its parameters. Those of a form that is sent as a change are parameters too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageRequest {
    path: Vec<String>,
    parameters: Vec<(String, String)>,
}

impl PageRequest {
    /// Decodes a target such as `/tables/a%2Fb?from=x`, and the body of a form, which may be empty.
    ///
    /// # Errors
    /// `InvalidArgument` when something is not valid percent-encoded UTF-8, or there are too many parts.
    pub fn parse(target: &str, form: &str) -> Result<Self, Error> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let segments = path.split('/').filter(|segment| !segment.is_empty());
        let path = segments.map(|segment| decode(segment, Plus::Itself)).collect::<Result<Vec<_>, _>>()?;
        let pairs = [query, form].into_iter().flat_map(|pairs| pairs.split('&')).filter(|pair| !pair.is_empty());
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decode(name, Plus::Space)?, decode(value, Plus::Space)?))
        };
        let parameters = pairs.take(PARAMETERS_MAX.saturating_add(1)).map(pair).collect::<Result<Vec<_>, Error>>()?;
        if path.len() > SEGMENTS_MAX || parameters.len() > PARAMETERS_MAX {
            return Err(Error::invalid("the address has too many parts"));
        }
        Ok(Self { path, parameters })
    }

    /// The segments of the path.
    #[must_use]
    pub fn path(&self) -> Vec<&str> {
        self.path.iter().map(String::as_str).collect()
    }

    /// A segment of the path, from 0; empty if there are fewer.
    #[must_use]
    pub fn segment(&self, at: usize) -> &str {
        self.path.get(at).map_or("", String::as_str)
    }

    /// A parameter; `None` when it is absent or empty, as the field of a form that was not filled in.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.parameters.iter().find(|(known, _value)| known == name);
        found.map(|(_name, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// The address of the same request, without these parameters and those that are empty.
    #[must_use]
    pub fn to_path(&self, without: &[&str]) -> Path {
        let kept =
            self.parameters.iter().filter(|(name, value)| !without.contains(&name.as_str()) && !value.is_empty());
        kept.fold(Path::of(&self.path()), |path, (name, value)| path.with(name, value))
    }

    /// A parameter that is a number; `None` when it is absent.
    ///
    /// # Errors
    /// `InvalidArgument` when it is no number, or not from 0 to `max`.
    pub fn number(&self, name: &str, max: u64) -> Result<Option<u64>, Error> {
        let Some(given) = self.get(name) else { return Ok(None) };
        let number = given.parse().ok().filter(|number| *number <= max);
        number.map(Some).ok_or_else(|| Error::invalid(format!("{name} is {given:?}: give a number from 0 to {max}")))
    }

    /// A parameter that is a row key, as commands write them: bytes as `\xHH`.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown escape.
    pub fn key(&self, name: &str) -> Result<Option<RowKey>, Error> {
        self.get(name).map(RowKey::parse_escaped).transpose()
    }
}

/// What a plus sign means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plus {
    /// In a path.
    Itself,
    /// In a query or a form.
    Space,
}

fn decode(part: &str, plus: Plus) -> Result<String, Error> {
    let invalid = || Error::invalid("the address is not valid: % must be followed by two hexadecimal digits of UTF-8");
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'%' => {
                let (digits, tail) = rest.split_at_checked(2).ok_or_else(invalid)?;
                let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                let digits: Option<Vec<u8>> = digits.iter().map(digit).collect();
                bytes.push(digits.ok_or_else(invalid)?.iter().fold(0, |byte, digit| byte << 4 | digit));
                rest = tail;
            }
            b'+' if plus == Plus::Space => bytes.push(b' '),
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_link_says_is_what_a_page_is_asked_for() {
        for hostile in ["a/b", "a+b", "a&b=c", "\u{e9}%", "..", "\"<>'", " x "] {
            let to = Path::of(&["tables", hostile]).with("key", hostile).with(hostile, "1").to_string();
            let request = PageRequest::parse(&to, "").unwrap();
            assert_eq!(request.path(), ["tables", hostile], "{to}");
            assert_eq!((request.get("key"), request.get(hostile)), (Some(hostile), Some("1")));
        }
        let form = PageRequest::parse("/login?next=%2F", "token=a+b%2B&empty=&x").unwrap();
        assert_eq!((form.get("token"), form.get("next"), form.get("empty")), (Some("a b+"), Some("/"), None));
        assert_eq!((form.segment(0), form.segment(1)), ("login", ""));
        let request = PageRequest::parse("/tables/a%2Fb?from=%3C&format=csv&end=&to=x+y", "").unwrap();
        assert_eq!(request.to_path(&["format"]).to_string(), "/tables/a%2Fb?from=%3C&to=x%20y");
    }

    #[test]
    fn bad_addresses_are_refused() {
        for wrong in ["/%", "/%2", "/%gg", "/%ff", "/?a=%f", "/1/2/3/4/5/6/7/8/9"] {
            assert!(PageRequest::parse(wrong, "").is_err(), "{wrong}");
        }
        assert!(PageRequest::parse(&format!("/?{}", "a=1&".repeat(PARAMETERS_MAX + 1)), "").is_err());
        let request = PageRequest::parse("/?n=7&m=x&k=%5Cxff&bad=%5Cq", "").unwrap();
        assert_eq!(request.number("n", 10), Ok(Some(7)));
        assert!(request.number("n", 6).is_err() && request.number("m", 9).is_err());
        assert_eq!(request.number("absent", 9), Ok(None));
        assert_eq!(request.key("k").unwrap().unwrap().as_bytes(), b"\xff");
        assert!(request.key("bad").is_err());
    }
}
