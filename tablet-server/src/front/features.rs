//! The features that a client supports: from the header `bigtable-features`, a message in websafe base64, and from the
//! library that `user-agent` names.

use ebla_proto::convert::LargeRows;
use ebla_proto::data::FeatureFlags;
use prost::Message;
use tonic::metadata::MetadataMap;

/// The features that a client announced. Most clients announce none; a header that cannot be decoded counts as none.
pub(super) fn features(metadata: &MetadataMap) -> FeatureFlags {
    metadata
        .get("bigtable-features")
        .and_then(|value| decode_base64(value.as_bytes()))
        .and_then(|bytes| FeatureFlags::decode(bytes.as_slice()).ok())
        .unwrap_or_default()
}

/// Whether the client accepts a row in several messages. Google's Go client refuses each message that does not end with
/// a row; all others accept them.
pub(super) fn large_rows(metadata: &MetadataMap) -> LargeRows {
    let agent = metadata.get("user-agent").and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    if agent.contains("grpc-go/") { LargeRows::Whole } else { LargeRows::Split }
}

/// Base64 in either alphabet, padded or not.
fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let unpadded = text.iter().rposition(|&byte| byte != b'=').map_or(0, |last| last + 1);
    let mut bytes = Vec::with_capacity(text.len());
    let (mut bits, mut held) = (0_u32, 0_u32);
    for &byte in text.get(..unpadded)? {
        bits = (bits << 6 | sextet(byte)?) & 0xffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from(bits >> held & 0xff).ok()?);
        }
    }
    Some(bytes)
}

fn sextet(byte: u8) -> Option<u32> {
    Some(u32::from(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(header: &str) -> FeatureFlags {
        let mut metadata = MetadataMap::new();
        metadata.insert("bigtable-features", header.parse().unwrap());
        features(&metadata)
    }

    #[test]
    fn base64_is_read_in_all_its_forms() {
        assert_eq!(decode_base64(b"aGVsbG8="), Some(b"hello".to_vec()));
        assert_eq!(decode_base64(b"aGVsbG8"), Some(b"hello".to_vec()));
        assert_eq!(decode_base64(b"-_8"), decode_base64(b"+/8="));
        assert_eq!(decode_base64(b""), Some(Vec::new()));
        assert_eq!(decode_base64(b"a*b"), None);
    }

    #[test]
    fn large_rows_stay_whole_for_the_go_client() {
        let of = |agent: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("user-agent", agent.parse().unwrap());
            large_rows(&metadata)
        };
        assert_eq!(of("grpc-go/1.71.1"), LargeRows::Whole);
        assert_eq!(of("cbt/1.23.2 cbt-go/v1.35.0 grpc-go/1.71.1"), LargeRows::Whole);
        assert_eq!(of("grpc-python/1.85.1 grpc-c/58.0.0 (linux; chttp2)"), LargeRows::Split);
        assert_eq!(large_rows(&MetadataMap::new()), LargeRows::Split);
    }

    #[test]
    fn the_go_client_announces_two_features() {
        let flags = announced("CAEgAQ==");
        assert!(flags.reverse_scans && flags.last_scanned_row_responses);
        assert_eq!(announced("nonsense!"), FeatureFlags::default());
        assert_eq!(features(&MetadataMap::new()), FeatureFlags::default());
    }
}
