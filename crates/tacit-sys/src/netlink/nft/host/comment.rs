//! Encodes and decodes the comments of nftables tables and elements. A comment has a kind, a
//! length, and a text that ends with a zero byte. The program `nft` uses this format too.

/// `NFTNL_UDATA_TABLE_COMMENT` and `NFTNL_UDATA_SET_ELEM_COMMENT`.
const COMMENT: u8 = 0;

/// The user data with a comment; `None` if the text is too long.
pub(super) fn encode(text: &str) -> Option<Vec<u8>> {
    let length = u8::try_from(text.len() + 1).ok()?;
    Some([&[COMMENT, length], text.as_bytes(), &[0]].concat())
}

/// The text of user data with a comment.
pub(super) fn decode(user_data: &[u8]) -> Option<&str> {
    let (&[COMMENT, length], text) = user_data.split_first_chunk()? else { return None };
    let text = text.get(..usize::from(length))?.strip_suffix(&[0])?;
    std::str::from_utf8(text).ok()
}
