//! The unsafe lines and Linux ABIs of tacit.
