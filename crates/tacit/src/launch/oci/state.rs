//! Parses the state of a container (OCI runtime specification, "State"). An OCI runtime writes this
//! state to the standard input of a hook.
//!
//! Limit: [`STATE_BYTES_MAX`]. Unknown keys are ignored.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;

/// The longest state. Annotations, which their creator chooses, are its only long part.
pub const STATE_BYTES_MAX: usize = 64 * 1024;

/// The annotation with the name of the run; without it, the run has the beginning of the
/// container's identifier as its name.
const NAME_ANNOTATION: &str = "tacit.run";

/// How many characters of the identifier are the name, as in displays of podman and Docker.
const NAME_CHARACTERS: usize = 12;

/// What a hook does for a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookTask {
    /// Protect the network namespace of this process, under this name.
    Protect {
        /// The first process of the container.
        pid: u32,
        /// The name of the run.
        name: String,
    },
    /// The container has stopped: its run ends with its process.
    Nothing,
}

/// Why the state of a container is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateError {
    /// It is longer than [`STATE_BYTES_MAX`].
    TooLong,
    /// It is no state in JSON, for this reason.
    Invalid(String),
    /// The program of the container runs already, perhaps without protection.
    Started,
    /// The container has no process.
    NoProcess,
    /// The container has no identifier that can be shown.
    NoName,
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(
                f,
                "the container runtime sent a container state of more than {STATE_BYTES_MAX} \
                 bytes\n    fix: remove long annotations of the container"
            ),
            Self::Invalid(reason) => write!(
                f,
                "standard input does not contain a valid container state: {reason}\n    \
                 fix: let an OCI runtime start this command, as a hook of `createRuntime`"
            ),
            Self::Started => f.write_str(
                "the program of the container has already started, but tacit must capture the \
                 container's traffic before the program starts\n    fix: use the hook at \
                 `createRuntime`",
            ),
            Self::NoProcess => f.write_str(
                "the container's state has no `pid`, so the container has no process yet\n    fix: \
                 use the hook at `createRuntime`",
            ),
            Self::NoName => write!(
                f,
                "`id` of the container is empty or has control characters\n    \
                 fix: set the annotation `{NAME_ANNOTATION}` to a name for the run"
            ),
        }
    }
}

impl std::error::Error for StateError {}

/// The keys of a state that matter here.
#[derive(Debug, Deserialize)]
struct ContainerState {
    id: String,
    status: String,
    pid: Option<u32>,
    annotations: Option<HashMap<String, String>>,
}

/// Parses a state.
///
/// # Errors
/// See [`StateError`].
pub fn parse(text: &[u8]) -> Result<HookTask, StateError> {
    if text.len() > STATE_BYTES_MAX {
        return Err(StateError::TooLong);
    }
    let state: ContainerState =
        serde_json::from_slice(text).map_err(|error| StateError::Invalid(error.to_string()))?;
    let ContainerState { id, status, pid, annotations } = state;
    if status == "stopped" {
        return Ok(HookTask::Nothing);
    }
    if !["creating", "created"].contains(&status.as_str()) {
        return Err(StateError::Started);
    }
    let pid = pid.filter(|pid| *pid > 0).ok_or(StateError::NoProcess)?;
    let chosen = annotations.and_then(|mut all| all.remove(NAME_ANNOTATION));
    // The agent checks the length, and names the limit.
    let name = chosen.unwrap_or_else(|| id.chars().take(NAME_CHARACTERS).collect());
    if name.is_empty() || name.contains(char::is_control) {
        return Err(StateError::NoName);
    }
    Ok(HookTask::Protect { pid, name })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parsed(state: &serde_json::Value) -> Result<HookTask, StateError> {
        parse(state.to_string().as_bytes())
    }

    #[test]
    fn what_is_no_state_is_rejected_by_its_error() {
        use StateError::{Invalid, NoName, NoProcess, Started, TooLong};
        let long = "x".repeat(STATE_BYTES_MAX);
        let created = |id: &str| json!({ "id": id, "status": "created", "pid": 7 });
        assert_eq!(parsed(&created(&long)), Err(TooLong));
        assert_eq!(parsed(&created("")), Err(NoName));
        assert_eq!(parsed(&created("a\nb")), Err(NoName));
        let running = json!({ "id": "a", "status": "running", "pid": 7 });
        assert_eq!(parsed(&running), Err(Started));
        for pid in [json!(null), json!(0)] {
            let state = json!({ "id": "a", "status": "creating", "pid": pid });
            assert_eq!(parsed(&state), Err(NoProcess), "{state}");
        }
        for text in [
            "",
            "[]",
            r#"{"id":"a","status":"created","pid":-1}"#,
            r#"{"id":"a","status":"created","pid":1,"pid":2}"#,
            r#"{"id":"a","pid":1}"#,
            r#"{"status":"created","pid":1}"#,
            r#"{"id":"a","status":"created","pid":1} {}"#,
        ] {
            assert!(matches!(parse(text.as_bytes()), Err(Invalid(_))), "{text}");
        }
    }

    #[test]
    fn a_stopped_container_needs_nothing() {
        let state =
            json!({ "ociVersion": "1.0.2", "id": "a", "status": "stopped", "bundle": "/b" });
        assert_eq!(parsed(&state), Ok(HookTask::Nothing));
    }

    #[test]
    fn an_annotation_names_the_run() {
        let named = |annotations: serde_json::Value| {
            let state = json!({ "id": "0123456789abcdef", "status": "created", "pid": 7,
                                "annotations": annotations });
            parsed(&state)
        };
        let protect = |name: &str| Ok(HookTask::Protect { pid: 7, name: name.to_owned() });
        assert_eq!(named(json!({ "tacit.run": "web" })), protect("web"));
        assert_eq!(named(json!({ "other": "web" })), protect("0123456789ab"));
        assert_eq!(named(json!(null)), protect("0123456789ab"));
    }

    proptest! {
        #[test]
        fn every_valid_state_is_understood(
            id in "[^\\p{Cc}]{1,80}",
            status in "creat(ing|ed)|running|[a-z]{1,9}",
            pid in 1_u32..,
            name in prop::option::of("[^\\p{Cc}]{1,80}"),
            other in ".{0,40}",
        ) {
            let annotations = name.clone().map(|name| json!({ NAME_ANNOTATION: name, "x": other }));
            let state = json!({ "id": id, "status": status, "pid": pid, "bundle": other,
                                "annotations": annotations });
            let own: String = id.chars().take(NAME_CHARACTERS).collect();
            let expected = match status.as_str() {
                "stopped" => Ok(HookTask::Nothing),
                "creating" | "created" => {
                    Ok(HookTask::Protect { pid, name: name.unwrap_or(own) })
                }
                _ => Err(StateError::Started),
            };
            prop_assert_eq!(parsed(&state), expected);
        }

        #[test]
        fn any_bytes_are_parsed_or_rejected(text in prop::collection::vec(any::<u8>(), 0..300)) {
            match parse(&text) {
                Ok(HookTask::Protect { pid, name }) => prop_assert!(pid > 0 && !name.is_empty()),
                Ok(HookTask::Nothing) => {}
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }
}
