//! Tests how much memory an idle connection needs.

use super::*;

/// The largest size of a session, without the secrets for its next keys.
const SESSION_BYTES_MAX: usize = 176;
/// The largest size of these secrets.
const TLS13_BYTES_MAX: usize = 104;

#[test]
fn a_session_is_small_and_owns_no_buffer_after_traffic() {
    assert!(size_of::<Session>() <= SESSION_BYTES_MAX, "{}", size_of::<Session>());
    assert!(size_of::<Tls13State>() <= TLS13_BYTES_MAX, "{}", size_of::<Tls13State>());
    let (mut client, mut server) = pair(TLS13, NO_REKEY);
    for byte in [24, 0, 0, 1, 0] {
        let mut wire = Vec::new();
        client.session().seal_message(ContentType::Handshake, &[byte], &mut wire).unwrap();
        server.give(&wire).unwrap();
    }
    assert!(server.session().message.is_none());
}
